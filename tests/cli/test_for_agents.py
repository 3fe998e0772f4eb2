"""The ten tasks of docs/how-to/for-agents.md, as an assistant would do them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import hpc_launch_text
from tests.view.home import Home

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "for-agents.md").read_text()
COMMAND = re.compile(r"^ +hpc-launch (.*?)(?: +# (.*))?$", re.MULTILINE)
TRAINING = """
import sys, time
words = sys.argv[1:]
steps = int(words[words.index("--steps") + 1])
for step in range(1, steps + 1):
    print(f"step {step}/{steps} loss 0.{step}", flush=True)
if "--sleep" in words:
    time.sleep(float(words[words.index("--sleep") + 1]))
if "--fail" in words:
    raise RuntimeError("the file data.bin is empty")
"""
SITE = """
name: mycluster
scheduler: slurm
node_classes: {gpu: {cpus: 64, memory: 512G, gpus: 4, gpu_vendor: nvidia, gpu_type: a100, gpu_memory: 80G}}
queues: {gpu: {node_class: gpu, partition: gpu, memory: omit}}
"""
OLD = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=4 --time=02:00:00 -p gpu
export OMP_NUM_THREADS=8
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=n1:29500 train.py --steps 10
"""
OUTCOMES: dict[str, Any] = {
    "init train.py": lambda found: "nodes: 2" in found["job"],
    "validate torch.yaml": lambda found: found == [],
    "submit torch.yaml": lambda found: found["run"] is None and Path(found["script"]).is_file(),
    "validate broken.yaml": lambda found: found[0]["hint"] == "did you mean `nodes`?",
    "explain": lambda found: [one["layer"] for one in found] == ["--set"],
    "init --from": lambda found: (
        found["same"] and not [1 for one in found["lines"] if one["outcome"] == "not_understood"]
    ),
    "plan torch.yaml --site mycluster --json": lambda found: found["memory_gib"]["high"] > 20 and not found["findings"],
    "plan torch.yaml --site mycluster --search": lambda found: found["recommended"] and found["layouts"],
    "cancel": lambda found: "cancelled job" in found[0]["message"],
    "list": lambda found: found[1]["time"]["training"] >= 0,
    "sites show": lambda found: [one["key"] for one in found if one["key"].endswith("partition")],
}
"""What an assistant concludes from the answers."""
IN_ORDER: dict[str, list[Any]] = {
    "status": [
        lambda found: (found["state"], found["progress"]["step"]) == ("COMPLETED", 3),
        lambda found: (found["counts"], found["best"]["point"]) == ({"COMPLETED": 3}, 0),
    ],
    "why": [
        lambda found: (found["class"], found["verdict"]) == ("user_code_error", "STOP"),
        lambda found: found["class"] == "success",
    ],
}
"""The same for verbs that several tasks call."""


def test_the_ten_tasks_of_the_guide(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.path)
    home.environment["HPC_LAUNCH_SITE_PATH"] = str(home.path)
    files = {"train.py": TRAINING, "mycluster.yaml": SITE, "old.sbatch": OLD}
    files |= dict(re.findall(r"`(\w+\.yaml)`,[^`]*\n\n```text\n(.*?)```", GUIDE, re.DOTALL))
    files["torch.yaml"] = files["torch.yaml"].replace("~/venvs/train", sys.prefix)
    files["broken.yaml"] = files["job.yaml"] + "node: 2\n"
    for name, text in files.items():
        (home.path / name).write_text(text)
    tasks = re.findall(r"^\d+\. .*?(?=^\d+\. |\Z)", GUIDE, re.DOTALL | re.MULTILINE)
    assert len(tasks) == 10
    expected = {name: [check] for name, check in OUTCOMES.items()} | {
        name: list(all_) for name, all_ in IN_ORDER.items()
    }
    for task in tasks:
        for command, note in COMMAND.findall(task):
            if note != "on the login node":
                _do(home, command, note, expected)
    assert not any(expected.values())


def _do(home: Home, command: str, note: str, expected: dict[str, list[Any]]) -> None:
    """Run a command; `note` is its comment. Its answer must pass the next check for it."""
    words = shlex.split(command)
    done = hpc_launch_text(words, env=home.environment)
    code = re.match(r"exits with (\d)", note)
    allowed = {int(code[1]) if code else 0, *([0] if " if " in note else [])}
    assert done.returncode in allowed, (command, done.stdout, done.stderr)
    for name in [name for name in expected if command.startswith(name) and expected[name]]:
        assert expected[name].pop(0)(json.loads(done.stdout)), (command, done.stdout)
