"""Cancelling at every moment of a run's life."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import SubmitUnknown, Unreachable
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.submitting.cancel_run import cancel_run, carry_out
from hpc_launch.runs.submitting.submit_attempt import submit_new
from tests.runs.fake import FakeScheduler
from tests.runs.samples import only_run, prepared, status_of


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


def test_a_job_of_another_run_that_has_the_id_now_goes_on(runs: Path, scheduler: FakeScheduler) -> None:
    """On a cluster that was set up again, or on another one with the same storage."""
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.set(job, name="another", state="RUNNING")

    assert cancel_run(run, scheduler) == []

    assert scheduler.job(job)["state"] == "RUNNING"


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
    scheduler.fault = ""
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    status = tracker.poll(fresh=True)[run.name]
    assert (status.state, status.cancel_due) == ("CANCELLED", True)
    assert carry_out(run, tracker.views(run), scheduler) == [job], "it need not wait for its nodes to exit"
    assert not tracker.poll(fresh=True)[run.name].cancel_due


def test_a_running_job_that_cannot_be_told(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.start(job)
    scheduler.fault = "away"

    with pytest.raises(Unreachable, match="job 1 could not be cancelled") as caught:
        cancel_run(run, scheduler)
    assert "the request is on record" in (caught.value.hint or "")


def test_a_request_that_did_not_reach_the_scheduler_is_due_once_it_answers(
    runs: Path, scheduler: FakeScheduler
) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.start(job)
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    scheduler.fault = "away"
    with pytest.raises(Unreachable):
        cancel_run(run, scheduler)
    status = tracker.poll(fresh=True)[run.name]
    assert not status.cancel_due, "nobody answers yet"
    assert "but the scheduler was not reached" in status.warnings[0]
    scheduler.fault = ""

    assert tracker.poll(fresh=True)[run.name].cancel_due
    assert carry_out(run, tracker.views(run), scheduler) == [job]

    assert scheduler.job(job)["state"] == "CANCELLED"
    status = tracker.poll(fresh=True)[run.name]
    assert (status.state, status.cancel_due, status.warnings) == ("CANCELLED", False, ())


def test_a_request_that_the_scheduler_accepted_is_not_due(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, job = submit_new(prepared(runs), scheduler)
    scheduler.start(job)
    cancel_run(run, scheduler)
    scheduler.set(job, state="RUNNING", ended=None)  # its processes are being ended

    assert not status_of(run, scheduler).cancel_due
    assert status_of(run, scheduler, later_s=90).cancel_due is False, "the answer is of now"


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("spares", [0, 1])
def test_a_job_that_goes_on_without_its_first_node_is_cancelled_and_failed_by_it(
    runs: Path, scheduler: FakeScheduler, spares: int, begun: bool
) -> None:
    run, attempt, job = submit_new(prepared(runs, plan={"nodes": 2, "spares": spares}), scheduler)
    scheduler.start(job)
    if not begun:  # as after a restart in the same job, whose script the node could not start
        attempt.start.unlink()
        attempt.hosts.write_text("n1\nn2\n")
    scheduler.set(job, nodes="n[2-3]")
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)

    status = tracker.poll(fresh=True)[run.name]
    due = carry_out(run, tracker.views(run), scheduler)

    assert (status.state, status.cancel_due, due) == (("ENDING", True, [job]) if spares else ("STARTING", False, []))
    scheduler.set(job, state="CANCELLED", ended=scheduler.clock())
    assert tracker.poll(fresh=True)[run.name].attempts[0].state == ("NODE_FAIL" if spares else "CANCELLED")


def test_a_submission_that_is_not_settled(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "deaf"
    with pytest.raises(SubmitUnknown):
        submit_new(prepared(runs), scheduler, lookup_s=0.1)
    run = only_run(runs)
    scheduler.fault = ""

    assert cancel_run(run, scheduler) == []
    assert status_of(run, scheduler).state == "CANCELLED"


def test_the_job_that_waits_for_the_end_of_another_is_cancelled_before_it(
    runs: Path, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"recovery": RetryPlan(successor=True)}
    run, _, job = submit_new(prepared(runs, plan=plan), scheduler)
    scheduler.start(job)
    waiting = Reader().read(run.attempt(1)).successor
    assert waiting is not None
    order: list[str] = []
    monkeypatch.setattr(scheduler, "cancel", order.append)

    cancel_run(run, scheduler)

    assert order == [waiting.job_id, job]
