"""Our own exclusions are dropped where they leave too few nodes for the job."""

from __future__ import annotations

from pathlib import Path

from tests.retry.driver import drive
from tests.retry.test_recover_run import failed, options, trained
from tests.runs.fake import FakeScheduler
from tests.runs.samples import status_of


def test_our_own_exclusion_is_dropped_where_it_leaves_too_few_nodes(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    scheduler.fault = "too few"
    assert drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1").kind == "waiting"
    assert options(run) == ["--exclude=n1"]
    scheduler.fault = ""

    move = drive(run, scheduler, "unknown", "STOP")

    assert move.kind == "submitted", move
    assert "n1 is no longer excluded" in move.words
    assert not [option for option in options(run) if option.startswith("--exclude")]
    assert status_of(run, scheduler).attempts[-1].overrides.by_name() == {"readmitted": ("n1",)}
    assert trained(scheduler) == ["2"]
