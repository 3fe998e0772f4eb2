"""The advice of the efficiency card: only what was measured supports one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent.notify import text
from hpc_launch.agent.notify_event import gpu_samples, uses_of
from hpc_launch.agent.notify_job import JobNotices
from hpc_launch.performance.efficiency import Efficiency, cpus_between, run_efficiency
from tests.view.sampled_run import sampled_run

GOOD = {"gpu_use": 0.9, "gpus": 8, "memory": 400.0, "memory_requested": 480.0, "time": 3000.0, "time_requested": 3600}


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, ""),
        ({"idle_gpus": 3}, "3 of 8 GPUs were idle in all samples: request fewer, or start a process for each"),
        ({"gpu_use": 0.31, "cause": "the ranks wait for data: add workers"}, "the ranks wait for data: add workers"),
        ({"gpu_use": 0.31}, ""),
        ({"memory": 40.0}, "request 52 GiB of memory per node instead of 480 GiB"),
        ({"memory": 40.0, "completed": False}, ""),
        ({"memory": 1.0, "memory_requested": 4.0}, ""),
        ({"memory": None}, ""),
        ({"time": 600.0}, "request 13 minutes instead of 60: shorter jobs start earlier"),
        ({"time": 60.0, "time_requested": 600}, ""),
        ({"time": None}, ""),
    ],
)  # fmt: skip
def test_advice_needs_evidence(changes: dict[str, Any], advice: str) -> None:
    assert Efficiency(**{"completed": True, **GOOD, **changes}).advice == advice


def test_gpus_with_few_samples_say_nothing_and_idle_ones_are_told(tmp_path: Path) -> None:
    attempt = tmp_path / "run" / "attempts" / "001"
    samples: list[list[tuple[int, float | None]]] = [
        [(0, 10.0), (1, 0.0), (2, 0.0)],
        [(0, 20.0), (2, None), (1, 0.0)],
        [(2, None), (0, 30.0), (1, 0.0)],
    ]
    lines = [json.dumps({"event": "sample", "gpus": [{"index": a, "util": b} for a, b in one]}) for one in samples]
    (attempt / "agent").mkdir(parents=True)
    file = attempt / "agent" / "node-0.jsonl"
    file.write_text("\n".join([*lines, '{"event": "sample", "gpus": [{"ind']))
    assert uses_of(gpu_samples(str(attempt))) == [[10.0, 20.0, 30.0], [0.0, 0.0, 0.0]]
    assert "used: GPUs 10%, 1 of 2 idle" in text(JobNotices(str(attempt), lambda _: None).event("end"))
    file.write_text('{"event": "sample", "gpus": null}\n')
    assert "used" not in text(JobNotices(str(attempt), lambda _: None).event("end"))


def test_of_very_many_nodes_some_are_read(tmp_path: Path) -> None:
    """`status` of a large run must not read the samples of every node, and its logs."""
    runs = (sampled_run(tmp_path, nodes=nodes, gpus=1, steps=1000, name=f"on-{nodes}") for nodes in (4, 130))
    few, many = (run_efficiency(replace(run, attempts=run.attempts[:1])) for run in runs)  # its last node is late
    assert few.gpus == 4
    assert "n3" in few.cause
    assert 32 < many.gpus <= 64
    assert not many.cause


def test_cpus_in_use_between_two_samples() -> None:
    assert cpus_between({"0": 10.0, "1": 10.0}, {"0": 25.0, "1": 20.0, "2": 5.0}, 10.0) == 3.0
    assert cpus_between({"0": 100.0}, {"0": 1.0}, 10.0) == 0.0, "it was started again"
    assert cpus_between({}, {"0": 1.0}, 0.0) == 0.0
