"""`doctor` on this machine: the levels of a job that works, and of jobs that do not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpc_launch import cli
from hpc_launch.preflight.short_run import sizes
from hpc_launch.prepare.prepare import prepare_job
from tests.here import launch

COUNTS = "import os, time\nfor step in range(1, 2000):\n    print('step', step, flush=True)\n    time.sleep(0.05)\n"
JOB = "name: counting\nsite: local\nlauncher: torchrun\nnodes: 2\nprocesses_per_node: 2\nscript: counts.py\n"
STEPS = "progress: {step: 'step (\\d+)'}\n"


def write(folder: Path, program: str, more: str = "") -> None:
    (folder / "counts.py").write_text(program)
    (folder / "job.yaml").write_text(JOB + more)


def test_the_levels_of_a_job_that_works(tmp_path: Path) -> None:
    write(tmp_path, COUNTS, STEPS)
    done = launch(tmp_path, "doctor", "job.yaml", "--json", "--no-job", "--set=launcher=none", "--set=nodes=1")
    assert done.returncode == 0, done.stdout + done.stderr
    levels = json.loads(done.stdout)
    assert [(level["name"], level["state"]) for level in levels] == [
        ("job", "ok"),
        ("imports", "ok"),
        ("queue", "ok"),
    ]
    assert "GiB free for run folders" in str(levels[0]["lines"])


def test_a_job_file_with_errors_ends_at_the_first_level(tmp_path: Path) -> None:
    write(tmp_path, COUNTS, "nods: 2\n")
    done = launch(tmp_path, "doctor", "job.yaml")
    assert done.returncode == 3
    assert done.stdout.startswith("job           failed       job.yaml:7:1: HL")
    assert "queue" not in done.stdout


def test_each_host_without_a_scheduler_trains_alone_before_all_do(tmp_path: Path) -> None:
    hosts = "scheduler: {type: ssh, hosts: {a: 2, b: 2, c: 1}}\nnode_classes: {host: {cpus: 2}}\n"
    (tmp_path / "lab.yaml").write_text(f"name: lab\n{hosts}queues: {{all: {{node_class: host, memory: omit}}}}\n")
    write(tmp_path, COUNTS, "time: 60\n")
    sets = ("nodes=3", "processes_per_node=null")
    whole = prepare_job(tmp_path / "job.yaml", site=str(tmp_path / "lab.yaml"), sets=sets)
    assert list(sizes(whole)) == [
        ("one process", ["nodes=1", "processes_per_node=1"]),
        ("one node", ["nodes=1"]),
        ("one node", ["nodes=1", 'exclude=["a"]']),
        ("one node", ["nodes=1", 'exclude=["a", "b"]']),
        ("two nodes", ["nodes=2"]),
        ("whole job", []),
    ]


def test_what_a_run_says_is_printed_without_control_characters() -> None:
    """The reason of a state and the words of a drill are of a scheduler, of logs, or of a team's rules."""
    for path in Path(cli.__file__).parent.glob("*.py"):
        assert not re.search(r"lambda \w+: click\.echo\(\w+,", path.read_text()), f"{path.name}: use print_note"
        assert not re.search(r"click\.echo\(f.*{[\w.]*\.(fault|reason|words|advice)\b", path.read_text()), path.name


@pytest.mark.torch
@pytest.mark.slow
def test_the_ladder_runs_the_training_at_each_size_and_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, COUNTS, STEPS)
    done = launch(tmp_path, "doctor", "job.yaml", "--ladder", "--json", "--set=nodes=1")
    assert done.returncode == 0, done.stdout + done.stderr
    levels = {level["name"]: level for level in json.loads(done.stdout)}
    assert list(levels) == ["job", "imports", "queue", "nodes", "one process", "whole job"]
    assert levels["nodes"]["state"] == "not checked"
    assert "reached step" in levels["whole job"]["lines"][0]
    states = json.loads(launch(tmp_path, "list", "--json").stdout)
    assert {entry["state"] for entry in states} <= {"CANCELLED", "ENDING"}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.prove  # the sizes in order: the test above
def test_the_ladder_stops_at_the_first_size_that_fails(tmp_path: Path) -> None:
    write(tmp_path, "import os\nassert os.environ['WORLD_SIZE'] == '1', 'only alone'\n", STEPS)
    done = launch(tmp_path, "doctor", "job.yaml", "--ladder", "--json")
    assert done.returncode == 3
    levels = json.loads(done.stdout)
    assert [(level["name"], level["state"]) for level in levels][-2:] == [("one process", "ok"), ("one node", "failed")]


@pytest.mark.torch
@pytest.mark.prove
@pytest.mark.slow
def test_the_network_is_measured_and_kept(tmp_path: Path) -> None:
    write(tmp_path, COUNTS, "strategy: ddp\nargs: {steps: 5}\n")
    done = launch(tmp_path, "doctor", "job.yaml", "--bench", "--json", "--set=processes_per_node=1")
    assert done.returncode == 0, done.stdout + done.stderr
    level = json.loads(done.stdout)[-1]
    assert (level["name"], level["state"]) == ("bench", "ok")
    assert "first measurement of 2 nodes x 1 process with gloo on this site" in level["lines"]
    measured = level["values"]["measured"]
    assert [size for size, _, _ in measured["curves"]["all-reduce"]] == [4**power for power in range(5, 13)]
    assert len(list((tmp_path / "state" / "hpc-launch" / "bench" / "local").glob("*.json"))) == 1
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("runs/*/attempts/001/bench.json")} == {0}
