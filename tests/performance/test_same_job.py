"""Attempts that ran in one job: between them nothing was queued, and the job's beginning is that of the first only."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.performance.run_times import RunTimes, run_times
from hpc_launch.runs.layout import RunFolder
from tests.view.samples import NOW, attempt, status

BEGAN = 1_700_000_000


def run_of(folder: Path, restarts: tuple[int, int]) -> RunFolder:
    """A run of two attempts of job 7, each with its own script; the scheduler knows one beginning and one end."""
    run = RunFolder(folder / "run")
    for number, restart in enumerate(restarts, 1):
        one, at = run.attempt(number), BEGAN + 100 * number
        one.logs.mkdir(parents=True)
        one.agent.mkdir()
        one.plan.write_text(json.dumps({"progress": {"step": r"step (\d+)"}}))
        one.intent.write_text(json.dumps({"time": at - 10}))
        one.job.write_text(json.dumps({"job_id": "7", "restart": restart, "submitted": at - 10}))
        one.claim.write_text("7")
        script = {"job_id": "7", "restart": restart, "started": at}
        one.start.write_text(json.dumps({**script, "phase": "training", "ended": at + 5}))
        one.end.write_text(json.dumps({**script, "exit_code": 2 - number, "ended": at + 80}))
        (one.logs / "node-0.log").write_text("step 1\n")
    began = BEGAN + 95 + 100 * restarts[1]
    ended = {"state": "COMPLETED", "source": "sacct", "as_of": NOW, "started": began, "ended": BEGAN + 285}
    run.attempt(2).final.write_text(json.dumps({"job_id": "7", **ended}))
    run.info.write_text(json.dumps({"run": "run", "created": BEGAN}))
    return run


def times_of(run: RunFolder, notes: Sequence[dict[str, Any]] = ()) -> RunTimes:
    """Once the watcher of the first attempt has noted these."""
    (run.attempt(1).agent / "node-0.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    attempts = tuple(attempt(run.attempt(number).path, number=number, job_id="7") for number in (1, 2))
    return run_times(status(run="run", folder=run.path, state="COMPLETED", attempts=attempts), NOW)


@pytest.mark.parametrize(("restarts", "between"), [((0, 0), "restarting"), ((0, 1), "queued")])
def test_the_time_between_two_attempts_of_a_job(tmp_path: Path, restarts: tuple[int, int], between: str) -> None:
    run = run_of(tmp_path, restarts)
    found = times_of(run)
    assert found.account.wall_s == 285
    second = [part for part in found.account.intervals if part.attempt == 2]
    assert (second[0].category, second[0].begin) == (between, BEGAN + 180)
    if between == "restarting":
        assert (second[0].end, second[1].category) == (BEGAN + 200, "starting")
        assert found.account.seconds("queued") == 100


@pytest.mark.parametrize(("silent_s", "expected"), [(40, -3), (30, 5), (20, 5), (10, 27), (None, 37)])
def test_a_hang_lasts_since_the_last_line_of_the_log_if_the_watcher_saw_it_late(
    tmp_path: Path, silent_s: int | None, expected: int
) -> None:
    run = run_of(tmp_path, (0, 0))
    notes = [{"event": "output", "t": 0, "size": 1 + at, "written": BEGAN + 110 + at} for at in range(6)]
    run.attempt(1).hang.write_text(json.dumps({"t": BEGAN + 147, "silent_s": silent_s}))
    found = times_of(run, notes)
    assert found.attempts[0].silent_since == BEGAN + 110 + expected
    assert found.attempts[0].hang_found == BEGAN + 147


@pytest.mark.parametrize(("kind", "trains"), [("import_error", False), ("user_code_error", True)])
def test_a_run_that_died_in_its_imports_trained_nothing(tmp_path: Path, kind: str, trains: bool) -> None:
    """Without `progress:`, the output of a training counts, but not that of a start that failed."""
    run = run_of(tmp_path, (0, 0))
    for number in (1, 2):
        run.attempt(number).plan.write_text("{}")
        run.attempt(number).end.write_text(
            json.dumps({"job_id": "7", "restart": 0, "exit_code": 1, "ended": BEGAN + 190})
        )
    states = tuple(attempt(run.attempt(n).path, number=n, job_id="7", failure_class=kind) for n in (1, 2))
    found = run_times(status(run="run", folder=run.path, state="FAILED", attempts=states), NOW)
    assert ((found.account.goodput or 0) > 0) is trains


WATCHED_START = [
    {"event": "start", "t": BEGAN + 106, "node": 0, "host": "n1"},
    {"event": "phase", "t": BEGAN + 108, "marks": {"-": "met", "0": "python"}},
]


@pytest.mark.parametrize(
    ("notes", "trained"),
    [
        ([], None),  # all its output came at once: its traceback
        ([(110, 9), (178, 900)], None),  # a line, then its traceback
        ([(110, 9), (140, 20), (150, 30), (178, 900)], None),
        ([(at, at) for at in range(110, 180, 5)], BEGAN + 110),
    ],
)
def test_a_run_whose_start_failed_trained_nothing_whatever_it_printed(
    tmp_path: Path, notes: list[tuple[int, int]], trained: float | None
) -> None:
    """Without `progress:`, an error of the program in its set-up is no training, such as a data set that is missing."""
    run = run_of(tmp_path, (0, 0))
    one = run.attempt(1)
    one.plan.write_text('{"phases": true}')
    written = [{"event": "output", "t": BEGAN + at, "size": size, "written": BEGAN + at} for at, size in notes]
    (one.agent / "node-0.jsonl").write_text("".join(json.dumps(note) + "\n" for note in [*WATCHED_START, *written]))
    one.end.write_text(json.dumps({"job_id": "7", "restart": 0, "exit_code": 1, "ended": BEGAN + 180}))
    log = one.logs / "node-0.log"
    log.write_text("x" * (notes[-1][1] if notes else 900))
    os.utime(log, (BEGAN + 179, BEGAN + 179))
    failed = attempt(one.path, number=1, job_id="7", state="FAILED", failure_class="user_code_error")
    found = run_times(status(run="run", folder=run.path, state="FAILED", attempts=(failed,)), NOW)
    assert found.attempts[0].trained == trained


def test_steps_that_were_all_seen_at_once_began_after_the_start(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0, 0))
    notes = [
        {"event": "start", "t": BEGAN + 106, "node": 0, "host": "n1"},
        {"event": "phase", "t": BEGAN + 140, "marks": {"-": "met", "0": "done"}},
        {"event": "output", "t": BEGAN + 150, "size": 7, "written": BEGAN + 149},
    ]
    found = times_of(run, notes)
    assert found.attempts[0].trained == BEGAN + 140
