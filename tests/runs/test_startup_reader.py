"""The start of an attempt as its run folder shows it: the nodes by name, their output, the first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.plan_record import PlanRecord, ProgressRecord
from hpc_launch.runs.status.startup_summary import StartupReader
from hpc_launch.runs.submitting.run_store import create_run
from tests.runs.samples import prepared

BEGAN = 1000.0
PLAN: dict[str, Any] = {
    "nodes": 3,
    "processes_per_node": 1,
    "phases": True,
    "scheduler": "slurm",
    "progress": {"step": r"step (\d+)"},
}


class Attempt:
    """The files of an attempt on n1, n2 and n3."""

    def __init__(self, folder: Path, number: int = 1, **plan: Any) -> None:
        self.folder = AttemptFolder(folder / "run" / "attempts" / f"{number:03d}")
        self.folder.agent.mkdir(parents=True)
        self.folder.logs.mkdir()
        self.folder.plan.write_text(json.dumps({**PLAN, **plan}))
        self.enter("environment", BEGAN)
        self.reader = StartupReader()

    def enter(self, phase: str, at: float) -> None:
        start = {"job_id": "7", "started": BEGAN, "ended": at, "phase": phase, "nodes": "n[1-3]", "exit_code": 0}
        self.folder.start.write_text(json.dumps(start))

    def node(self, number: int, *marks: str, at: float = 1.0) -> None:
        events: list[dict[str, Any]] = [{"event": "start", "t": BEGAN + at}]
        events += [{"event": "phase", "t": BEGAN + at + n, "marks": {"-": mark}} for n, mark in enumerate(marks, 1)]
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (self.folder.agent / f"node-{number}.jsonl").write_text(lines)

    def log(self, number: int, text: str) -> None:
        (self.folder.logs / f"node-{number}.log").write_text(text)

    def text(self) -> str | None:
        found = self.reader.read(Reader().read(self.folder))
        return found.text() if found is not None else None


def test_nodes_have_the_names_of_the_job_and_move_on_between_polls(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert attempt.text() == "start: 0 of 3 nodes; n1, n2, n3 not started"
    attempt.node(0, "launcher", "joined")
    attempt.node(2, "launcher")
    assert attempt.text() == "rendezvous: 1 of 3 nodes; n2 not started; n3 still importing"
    attempt.node(1, "launcher", "joined")
    attempt.node(2, "launcher", "joined")
    assert attempt.text() == "rendezvous: 3 of 3 nodes"


def test_while_the_script_prepares_the_nodes_none_is_waited_for(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    for phase, name in (("check", "node check"), ("stage", "staging")):
        attempt.enter(phase, BEGAN + 10)
        found = attempt.reader.read(Reader().read(attempt.folder))
        assert found is not None
        assert (found.text(), found.waiting_for, found.groups[0].since) == (name, (), BEGAN + 10)
    attempt.enter("environment", BEGAN + 50)
    assert attempt.text() == "start: 0 of 3 nodes; n1, n2, n3 not started"


def test_a_node_that_writes_without_a_watcher_is_not_said_to_be_missing(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.node(0, "launcher")
    attempt.log(1, "no python3 on this host\n")
    attempt.log(2, "")
    assert attempt.text() == "imports: 1 of 2 nodes; n3 not started"


def test_the_first_step_ends_the_start(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.node(0, "launcher")
    attempt.log(0, "hello\n")
    assert attempt.text() is not None
    attempt.log(0, "hello\nstep 1\n")
    assert attempt.text() is None


@pytest.mark.parametrize("plan", [{"phases": False}, {"phases": None}])
def test_without_reports_nothing_is_claimed(tmp_path: Path, plan: dict[str, Any]) -> None:
    assert Attempt(tmp_path, **plan).text() is None


@pytest.mark.parametrize("phases", [True, False])
def test_a_run_that_does_not_report_has_no_sitecustomize(runs: Path, phases: bool) -> None:
    plan = PlanRecord(progress=ProgressRecord(), phases=phases)
    run = create_run(prepared(runs, plan=plan))
    assert (run.hooks / "sitecustomize.py").exists() == phases
    assert (run.hooks / "__pycache__").is_file()
