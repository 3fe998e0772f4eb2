"""A training on this machine that saves slowly: its checkpoints and the phases of its start are in its time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.here import launch

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.prove]

TRAINING = """
import io, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
class Slow(io.BytesIO):
    def write(self, data):
        time.sleep(0.02)
        return super().write(data)
for step in range(1, 25):
    time.sleep(0.1)
    dist.all_reduce(torch.ones(9))
    if dist.get_rank() == 0:
        print(f"step {step}/24", flush=True)
    if step % 8 == 0:
        began = time.time()
        torch.save({str(number): torch.ones(2) + number for number in range(20)}, Slow())
        print(f"saved {time.time() - began}", flush=True)
dist.destroy_process_group()
"""


def test_checkpoints_and_the_phases_of_the_start_count(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    keys: dict[str, object] = {"name": "saving", "site": "local", "script": "train.py", "processes_per_node": 2}
    keys |= {"retry": 1, "hang": {"sample_every": "1s"}}
    (tmp_path / "job.yaml").write_text(json.dumps({**keys, "progress": {"step": r"step (\d+)/(\d+)"}}))
    done = launch(tmp_path, "submit", "job.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    found = json.loads(launch(tmp_path, "status", "@last", "--json").stdout)
    (log,) = (tmp_path / "runs").glob("*/attempts/001/logs/node-0.log")
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("[rank0]: saved")]
    assert found["time"]["checkpointing"] == pytest.approx(sum(float(words[2]) for words in lines), rel=0.2, abs=0.2)
    assert found["time"]["training"] > 1
    assert "imports" in found["starting_phases"]  # without time for `first_step` if the last rank marks it late
    assert sum(found["starting_phases"].values()) == pytest.approx(found["time"]["starting"], abs=0.1)
    assert "  use " in done.stderr, "at the end of --wait"
    (use,) = [line for line in launch(tmp_path, "status", "@last").stdout.splitlines() if line.startswith("  use ")]
    assert "CPUs " in use
    assert "memory " in use
    assert launch(tmp_path, "report", "@last", "-o", "run.html").returncode == 0
    page = (tmp_path / "run.html").read_text()
    for words in ("CPU use by node", "CPU use by rank", "Memory by rank", "rank 1, ", "steps/s"):
        assert words in page, words
    why = json.loads(launch(tmp_path, "why", "@last", "--json").stdout)
    assert why["checkpoint_interval"] is None, "no failure was seen"
    done = launch(tmp_path, "plan", "job.yaml", "--pace-of", "@last", "--set", "args.steps=2400", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["time"]
    assert plan["source"] == "measured"
    trained = found["time"]["training"] + found["time"]["checkpointing"]
    assert plan["step_s"] == pytest.approx(trained / 24, rel=0.5), "with the checkpoints between the steps"
    assert plan["wall_s"] >= 2400 * plan["step_s"]
    assert plan["warning_lead_s"] == 60, "the least"
