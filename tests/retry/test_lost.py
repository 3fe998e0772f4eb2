"""A job that the scheduler has forgotten, without a word of its end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.retry.drivers import Drivers
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.verdict_record import VerdictRecord, keep_verdict
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.submitting.submit_attempt import submit_new
from tests.retry.driver import drive
from tests.retry.test_recover_run import trained
from tests.runs.fake import FakeScheduler
from tests.runs.samples import prepared, status_of

HOUR = 3600.0


def forgotten(runs: Path, scheduler: FakeScheduler, *, silent_s: float, began: bool = True) -> RunFolder:
    plan: dict[str, Any] = {"scheduler": "slurm", "recovery": RetryPlan(), "excluded": []}
    run, attempt, job_id = submit_new(prepared(runs, plan=plan, secrets={}), scheduler)
    if began:
        assert scheduler.start(job_id)
        scheduler.speak(job_id, "step 1/9")
    scheduler.set(job_id, name="another user's")
    job = json.loads(attempt.job.read_text())
    attempt.job.write_text(json.dumps({**job, "submitted": job["submitted"] - HOUR}))
    for path in attempt.path.rglob("*"):
        os.utime(path, (scheduler.clock() - silent_s,) * 2)
    return run


def test_after_a_silence_it_counts_as_a_failed_node(runs: Path, scheduler: FakeScheduler) -> None:
    run = forgotten(runs, scheduler, silent_s=1000)

    assert drive(run, scheduler, "unknown", "STOP").kind == "submitted"

    first = status_of(run, scheduler).attempts[0]
    assert (first.failure_class, first.verdict) == ("node_failure", "RETRY")
    assert "nothing was written for" in first.evidence[0].text
    assert trained(scheduler) == ["2"]


@pytest.mark.parametrize(
    ("silent_s", "fault", "kind"),
    [
        pytest.param(60, "", "waiting", id="it still writes"),
        pytest.param(1000, "elsewhere", "nothing", id="another cluster answers"),
    ],
)
def test_else_it_stays_unknown(runs: Path, scheduler: FakeScheduler, silent_s: float, fault: str, kind: str) -> None:
    run = forgotten(runs, scheduler, silent_s=silent_s)
    scheduler.fault = fault

    assert drive(run, scheduler, "unknown", "STOP").kind == kind
    assert (status_of(run, scheduler).state, len(run.attempts())) == ("UNKNOWN", 1)


def test_a_driver_that_follows_the_run_waits_for_it_and_goes_on(runs: Path, scheduler: FakeScheduler) -> None:
    """`watch`, `list` and `--wait` look at an unknown run again and again, until it counts as lost."""
    run = forgotten(runs, scheduler, silent_s=60)
    index = Index(runs.parent / "index", {})
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    drivers = Drivers(tracker, index)
    status = tracker.poll(fresh=True)[run.name]

    assert (status.state, drivers.due(status)) == ("UNKNOWN", True)
    outcome = drive(run, scheduler, "unknown", "STOP")
    assert outcome.continues
    assert "counts as lost in 8" in outcome.words


def test_a_run_that_is_lost_twice_without_progress_is_over(runs: Path, scheduler: FakeScheduler) -> None:
    run = forgotten(runs, scheduler, silent_s=1000)
    keep_verdict(run.attempt(1), VerdictRecord(action="STOP", failure_class="node_failure", reason="enough"))

    status = status_of(run, scheduler)
    assert (status.state, status.final) == ("FAILED", True)
    assert "enough" in (status.reason or "")


@pytest.mark.parametrize(
    ("waited_s", "fault", "state"), [(1000, "", "STOPPED"), (60, "", "UNKNOWN"), (1000, "elsewhere", "UNKNOWN")]
)
def test_a_job_that_vanished_before_it_began_is_over(
    runs: Path, scheduler: FakeScheduler, waited_s: float, fault: str, state: str
) -> None:
    run = forgotten(runs, scheduler, silent_s=waited_s, began=False)
    scheduler.fault = fault

    drive(run, scheduler, "unknown", "STOP")

    assert status_of(run, scheduler).state == state
    if state == "STOPPED":
        assert drive(run, scheduler, "unknown", "STOP").kind == "ended"
        last = status_of(run, scheduler).attempts[0]
        assert (last.failure_class, last.verdict) == ("unknown", "STOP")
        job_id = json.loads(run.attempt(1).job.read_text())["job_id"]
        assert not scheduler.start(job_id), "it cannot train if it comes back"
