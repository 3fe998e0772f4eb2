"""A job that the scheduler has forgotten, without a word of its end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.submitting.submit_attempt import submit_new
from tests.retry.driver import drive
from tests.retry.test_recover_run import trained
from tests.run.fake import FakeScheduler
from tests.run.samples import prepared, status_of

HOUR = 3600.0


def forgotten(runs: Path, scheduler: FakeScheduler, *, silent_s: float) -> RunFolder:
    plan: dict[str, Any] = {"scheduler": "slurm", "recovery": RetryPlan(), "excluded": []}
    run, attempt, job_id = submit_new(prepared(runs, plan=plan, secrets={}), scheduler)
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
    ("silent_s", "fault"),
    [pytest.param(60, "", id="it still writes"), pytest.param(1000, "elsewhere", id="another cluster answers")],
)
def test_else_it_stays_unknown(runs: Path, scheduler: FakeScheduler, silent_s: float, fault: str) -> None:
    run = forgotten(runs, scheduler, silent_s=silent_s)
    scheduler.fault = fault

    assert drive(run, scheduler, "unknown", "STOP").kind == "nothing"
    assert (status_of(run, scheduler).state, len(run.attempts())) == ("UNKNOWN", 1)
