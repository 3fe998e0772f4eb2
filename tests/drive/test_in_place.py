"""The next attempt as the same job: when, with which changes, and never beside a new one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.run.layout import RunFolder
from hpc_launch.run.submitting.fault_points import KILL_AFTER, STOP_AFTER
from hpc_launch.run.submitting.reconcile import GIVE_UP_S
from hpc_launch.run.submitting.submit_attempt import STEPS
from tests.drive.driver import drive
from tests.drive.test_recovery import driver, failed, options, trained
from tests.run.fake import Clock, FakeScheduler
from tests.run.samples import status_of

BEFORE_RELEASE = (*STEPS[1 : STEPS.index("submitted")], "held")
AFTER_RELEASE = ("released", *STEPS[STEPS.index("submitted") :])


def put_back(runs: Path, scheduler: FakeScheduler, **plan: Any) -> RunFolder:
    """A run whose attempt failed, and whose job may go back."""
    run = failed(runs, scheduler, in_place=True, **plan)
    scheduler.set("1", may_go_back=True, nodes=None)
    return run


def starts(scheduler: FakeScheduler, run: RunFolder) -> list[str]:
    """Whatever waits and is not held starts, by the rules of the script; the jobs that train."""
    train = []
    for job_id in scheduler.jobs():
        record = scheduler.record(job_id)
        if record.state != "PENDING" or record.reason == "JobHeldUser":
            continue
        if not record.restarts:
            train += [job_id] if scheduler.start(job_id) else []
            continue
        for attempt in run.attempts():
            intent = json.loads(attempt.intent.read_text()) if attempt.intent.exists() else {}
            if intent.get("in_place") == job_id and not attempt.claim.exists():
                attempt.claim.write_text(f"{job_id}\n")
                train.append(job_id)
                break
    return train


def change(scheduler: FakeScheduler) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((scheduler.folder / "change-1").read_text())
    return told


def test_the_job_goes_back_without_its_bad_node(runs: Path, scheduler: FakeScheduler) -> None:
    run = put_back(runs, scheduler, exclude=("n9",))

    move = drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1")

    assert (move.kind, "job 1 again" in move.words) == ("submitted", True), move
    assert change(scheduler)["exclude"] == ["n9", "n1"]
    assert scheduler.jobs() == ["1"]
    status = status_of(run, scheduler)
    assert (status.state, [one.job_id for one in status.attempts]) == ("PENDING", ["1", "1"])
    assert starts(scheduler, run) == ["1"]


def test_the_pause_is_kept(runs: Path, scheduler: FakeScheduler) -> None:
    run = put_back(runs, scheduler)
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "submitted"
    assert change(scheduler)["delay_s"] == 30


def test_what_slurm_does_not_put_back_is_submitted_anew(runs: Path, scheduler: FakeScheduler) -> None:
    run = put_back(runs, scheduler)
    scheduler.set("1", may_go_back=False)

    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "submitted"

    assert starts(scheduler, run) == ["2"]
    assert "in_place" not in json.loads(run.attempts()[1].intent.read_text())


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        pytest.param("--mem=1G", "--mem=2G", "back", id="memory"),
        pytest.param("train --batch 8", "train --batch 4", "new", id="another command"),
    ],
)
def test_only_what_slurm_can_change_goes_back(
    runs: Path, scheduler: FakeScheduler, old: str, new: str, kind: str
) -> None:
    from hpc_launch.retry.in_place import changed_lines

    script = "#!/bin/bash\n#SBATCH --mem=1G  # a\ntrain --batch 8\n"
    found = changed_lines(script, script.replace(old, new))
    assert found == (frozenset({"mem"}) if kind == "back" else None)


@pytest.mark.parametrize("step", [*BEFORE_RELEASE, *AFTER_RELEASE])
def test_killed_at_any_step_one_trains(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    run = put_back(runs, scheduler)
    killed = driver(run, scheduler, "nccl_timeout", "RETRY", **{KILL_AFTER: step})
    killed.communicate(timeout=180)
    assert killed.returncode == -signal.SIGKILL
    scheduler.clock = Clock(scheduler.clock() + GIVE_UP_S + 1)

    for _ in range(3):
        drive(run, scheduler, "nccl_timeout", "RETRY")

    assert len(starts(scheduler, run)) == 1
    waiting = [one for one in scheduler.jobs() if scheduler.record(one).reason == "JobHeldUser"]
    assert [one for one in waiting if not scheduler.record(one).ended_for_good] == [], "nothing stays held"


@pytest.mark.parametrize("step", [*BEFORE_RELEASE, *AFTER_RELEASE])
def test_a_frozen_driver_that_wakes_up_doubles_nothing(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    run = put_back(runs, scheduler)
    frozen = driver(run, scheduler, "nccl_timeout", "RETRY", **{STOP_AFTER: step})
    assert os.WIFSTOPPED(os.waitpid(frozen.pid, os.WUNTRACED)[1])
    scheduler.clock = Clock(scheduler.clock() + GIVE_UP_S + 1)
    for _ in range(3):
        drive(run, scheduler, "nccl_timeout", "RETRY")

    frozen.send_signal(signal.SIGCONT)
    frozen.communicate(timeout=180)

    assert len(starts(scheduler, run)) == 1


# --- Too few nodes are left ---


def test_our_own_exclusion_is_dropped_where_it_leaves_too_few_nodes(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    scheduler.fault = "too few"
    assert drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1").kind == "waiting"
    assert options(run) == ["--exclude=n1"]
    scheduler.fault = ""

    move = drive(run, scheduler, "unknown", "STOP")

    assert move.kind == "submitted", move
    assert "n1 is no longer kept off" in move.words
    assert not [option for option in options(run) if option.startswith("--exclude")]
    assert status_of(run, scheduler).attempts[-1].overrides == {"readmitted": ["n1"]}
    assert trained(scheduler) == ["2"]
