"""Cancelling at every moment of a run's life."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import SubmitUnknown, Unreachable
from hpc_launch.run.submitting.cancel_run import cancel_run
from hpc_launch.run.submitting.submit_attempt import submit_new
from tests.run.fake import FakeScheduler
from tests.run.samples import only_run, prepared, status_of


def test_a_waiting_job(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)

    assert cancel_run(run, scheduler) == [job]

    status = status_of(run, scheduler)
    assert status.state == "CANCELLED"
    assert scheduler.job(job)["state"] == "CANCELLED"
    assert not scheduler.start(job)


def test_a_running_job(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.start(job)

    cancel_run(run, scheduler)
    scheduler.end(job, 143, "TERM")

    status = status_of(run, scheduler)
    assert status.state == "CANCELLED"
    assert (status.reason or "").startswith("cancelled by ")


def test_a_job_that_is_over_stays_what_it_was(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.start(job)
    scheduler.end(job)
    scheduler.set(job, state="COMPLETED", ended=scheduler.clock())

    cancel_run(run, scheduler)

    assert status_of(run, scheduler).state == "COMPLETED"


def test_a_waiting_job_never_trains_though_nobody_answers(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.fault = "away"

    cancel_run(run, scheduler)

    assert status_of(run, scheduler).state == "CANCELLED"
    assert not scheduler.start(job)


def test_a_running_job_that_cannot_be_told(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.start(job)
    scheduler.fault = "away"

    with pytest.raises(Unreachable, match="job 1 could not be cancelled"):
        cancel_run(run, scheduler)


def test_a_submission_that_is_not_settled(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "deaf"
    with pytest.raises(SubmitUnknown):
        submit_new(prepared(runs), scheduler, lookup_s=0.1)
    run = only_run(runs)
    scheduler.fault = ""

    assert cancel_run(run, scheduler) == []
    assert status_of(run, scheduler).state == "CANCELLED"
