"""A driver that is killed or frozen after any step of the protocol: one training, or none and the status says so."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from hpc_launch.base.errors import UsageError
from hpc_launch.runs.submitting.reconcile import GIVE_UP_S, GRACE_S
from hpc_launch.runs.submitting.run_store import KILL_AFTER, STOP_AFTER
from hpc_launch.runs.submitting.submit_attempt import STEPS, submit_new, submit_next
from tests.runs.fake import FakeScheduler
from tests.runs.samples import in_another_process, only_run, prepared, status_of

BEFORE_SBATCH = STEPS[: STEPS.index("submitted")]
AFTER_SBATCH = STEPS[STEPS.index("submitted") :]


driver = partial(in_another_process, "tests.runs.driver")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=180)
    return process.returncode, output.strip()


def trained(scheduler: FakeScheduler) -> list[str]:
    """The jobs that train when all of them start."""
    return [job_id for job_id in scheduler.jobs() if scheduler.start(job_id)]


@pytest.mark.parametrize("step", BEFORE_SBATCH)
def test_killed_before_sbatch_nothing_trains(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    assert finish(driver(scheduler.folder, runs, **{KILL_AFTER: step}))[0] == -signal.SIGKILL

    status = status_of(only_run(runs), scheduler, later_s=GRACE_S + 1)

    assert (status.state, status.reason) == ("STOPPED", "never submitted")
    assert trained(scheduler) == []


@pytest.mark.parametrize("step", AFTER_SBATCH)
def test_killed_after_sbatch_the_job_is_found_by_its_token(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    assert finish(driver(scheduler.folder, runs, **{KILL_AFTER: step}))[0] == -signal.SIGKILL

    status = status_of(only_run(runs), scheduler)

    assert (status.state, status.job_id) == ("PENDING", "1")
    assert trained(scheduler) == ["1"]
    assert status_of(only_run(runs), scheduler).state == "STARTING"


@pytest.mark.parametrize("step", AFTER_SBATCH)
def test_killed_after_sbatch_and_the_job_ran_at_once(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    finish(driver(scheduler.folder, runs, **{KILL_AFTER: step}))
    scheduler.start("1")
    scheduler.fault = "away"

    status = status_of(only_run(runs), scheduler, later_s=2 * GIVE_UP_S)

    # Its claim names the job, so nobody has to be asked which one it is.
    assert (status.state, status.job_id) == ("UNKNOWN", "1")


def test_an_intent_is_not_given_up_while_its_sbatch_may_be_under_way(runs: Path, scheduler: FakeScheduler) -> None:
    finish(driver(scheduler.folder, runs, **{KILL_AFTER: "intent"}))

    status = status_of(only_run(runs), scheduler)

    assert status.state == "SUBMITTING"
    assert status.reason is not None
    assert f"on {os.uname().nodename} began to submit it" in status.reason


@pytest.mark.parametrize("step", BEFORE_SBATCH)
def test_a_frozen_driver_that_wakes_up_later_changes_nothing(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    frozen = driver(scheduler.folder, runs, **{STOP_AFTER: step})
    assert os.WIFSTOPPED(os.waitpid(frozen.pid, os.WUNTRACED)[1])
    run = only_run(runs)
    assert status_of(run, scheduler).state == "SUBMITTING"

    assert status_of(run, scheduler, later_s=GIVE_UP_S + 1).state == "STOPPED"
    _, attempt, job_id = submit_next(run, prepared(runs), scheduler)
    frozen.send_signal(signal.SIGCONT)

    code, output = finish(frozen)
    assert code == 2, output
    assert trained(scheduler) == [job_id]
    assert (attempt.number, status_of(run, scheduler).job_id) == (2, job_id)


@pytest.mark.parametrize("step", AFTER_SBATCH)
def test_a_driver_frozen_after_sbatch_keeps_others_out(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    frozen = driver(scheduler.folder, runs, **{STOP_AFTER: step})
    os.waitpid(frozen.pid, os.WUNTRACED)
    run = only_run(runs)

    assert status_of(run, scheduler, later_s=2 * GIVE_UP_S).state == "PENDING"
    with pytest.raises(UsageError, match="job 1 is PENDING"):
        submit_next(run, prepared(runs), scheduler)
    frozen.send_signal(signal.SIGCONT)

    assert finish(frozen) == (0, "1")
    assert trained(scheduler) == ["1"]


def test_only_one_of_many_drivers_gets_the_next_attempt(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, first = submit_new(prepared(runs), scheduler)
    scheduler.cancel(first)

    drivers = [driver(scheduler.folder, runs, run.path) for _ in range(6)]
    ends = [finish(one) for one in drivers]

    assert sorted(code for code, _ in ends) == [0, 2, 2, 2, 2, 2]
    assert all("claimed by another process" in text or "is not over" in text for code, text in ends if code == 2)
    assert [folder.number for folder in run.attempts()] == [1, 2]
    assert len(scheduler.jobs()) == 2
