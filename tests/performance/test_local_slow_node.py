"""A training on two "nodes" of this machine, one of which dawdles at each step: `why` names it while it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.runs.records.node_records import start_events
from hpc_launch.runs.status.startup_summary import ORDER, history
from tests.cluster.faults import wait_until
from tests.here import launch

pytestmark = pytest.mark.torch

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
late = float(sys.argv[1]) if dist.get_rank() == 1 else 0.0
for step in range(1, 100001):
    until = time.time() + 0.02
    while time.time() < until:
        pass
    time.sleep(late)
    dist.all_reduce(torch.ones(1000))
    if dist.get_rank() == 0:
        print(f"step {step} loss 1.0", flush=True)
"""

JOB: dict[str, Any] = {
    "name": "dawdling",
    "site": "local",
    "script": "train.py",
    "nodes": 2,
    "processes_per_node": 1,
    "time": "00:20:00",
    "hang": {"sample_every": "1s"},
    "retry": 1,
    "progress": {"step": "step (\\d+)"},
}


class Here:
    """A user with runs on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAINING)

    def start(self, late: str) -> None:
        """Submit it, and wait until the watcher has seen both ranks train for a while."""
        (self.folder / "job.yaml").write_text(json.dumps({**JOB, "args": [late]}))
        done = launch(self.folder, "submit", "job.yaml")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: "step 3 " in self._log())
        before = self._samples()
        # The newest half counts, so it takes as many samples again until none is from the start.
        wait_until(lambda: self._samples() >= max(2 * before, 16) + 2, 400)

    def marks(self) -> list[list[str]]:
        """What the start of each node went through."""
        files = sorted((self.folder / "runs").glob("*/attempts/001/agent/node-*.jsonl"))
        return [[mark for _, mark in history(start_events(file), 1)] for file in files]

    def _log(self) -> str:
        logs = (self.folder / "runs").glob("*/attempts/001/logs/*.log")
        return "".join(log.read_text(errors="replace") for log in logs)

    def _samples(self) -> int:
        """How many samples of its ranks the node with the fewest has."""
        files = list((self.folder / "runs").glob("*/attempts/001/agent/node-*.jsonl"))
        counts = [sum('"places": {"' in line for line in file.read_text().splitlines()) for file in files]
        return min(counts) if len(counts) == 2 else 0


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    launch(here.folder, "cancel", "@last")


@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.parametrize(("late", "kinds"), [("1", ["node_behind"]), ("0", [])], ids=["dawdling", "even"])
def test_a_node_behind_is_named_and_an_even_run_is_left_alone(here: Here, late: str, kinds: list[str]) -> None:
    here.start(late)
    for marks in here.marks():
        assert marks == sorted(marks, key=ORDER.__getitem__)
        assert marks[0] == "started"
        assert marks[-1] == "done"
        assert {"launcher", "python", "torch"} & set(marks)
    assert "phase" not in json.loads(launch(here.folder, "status", "@last", "--json").stdout)
    done = launch(here.folder, "why", "@last", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], [remark["kind"] for remark in found["remarks"]]) == ("RUNNING", kinds)
    words = launch(here.folder, "why", "@last").stdout
    assert words.startswith("RUNNING, step ")
    if kinds:
        assert (found["remarks"][0]["node"], found["remarks"][0]["rank"]) == ("node 1", 1)
        assert "usually sleeping" in found["remarks"][0]["text"]
        assert found["also"][-1].startswith("node_behind: rank 1 on node 1 is slower than the other ranks")
        assert "slow       node_behind: rank 1 on node 1 is slower than the other ranks" in words
    else:
        assert "no known slowdown detected" in words
