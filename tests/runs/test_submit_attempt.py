"""Submitting when nobody is killed: what stands on disk, what the scheduler's answers lead to, and faults of disks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.base.errors import Refused, SubmitRefused, SubmitUnknown, Unreachable, UsageError
from hpc_launch.base.files import create_once
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_journals
from hpc_launch.runs.submitting import submit_attempt
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.reconcile import GIVE_UP_S, GRACE_S
from hpc_launch.runs.submitting.submit_attempt import submit_new, submit_next
from tests.runs.fake import FakeScheduler
from tests.runs.samples import only_run, prepared, read_json, status_of


def unanswered(runs: Path, scheduler: FakeScheduler) -> RunFolder:
    """A run whose submission got no answer."""
    scheduler.fault = "deaf"
    with pytest.raises(SubmitUnknown):
        submit_new(prepared(runs), scheduler, lookup_s=0.1)
    return only_run(runs)


def booked(scheduler: FakeScheduler, run: RunFolder, job_id: str, **changes: Any) -> None:
    """The job of a run's submission is in the scheduler's table after all."""
    name = (read_json(run.attempt(1).intent) or {})["job_name"]
    job = {"name": name, "folder": str(run.attempt(1).path), "state": "PENDING", "submitted": 1.0, **changes}
    (scheduler.folder / "jobs" / f"{job_id}.json").write_text(json.dumps(job))


def test_a_run_folder_holds_everything(runs: Path, scheduler: FakeScheduler) -> None:
    run, attempt, job_id = submit_new(prepared(runs, options=("--exclude=n3",)), scheduler)

    assert run.name.startswith("tiny-")
    assert run.job_yaml.read_text() == "name: tiny\n"
    assert attempt.script.read_text() == "#!/bin/bash\ntrue\n"
    assert os.access(attempt.script, os.X_OK)
    intent = read_json(attempt.intent)
    assert intent is not None
    assert scheduler.job(job_id)["name"] == intent["job_name"] == f"tiny.{intent['token']}.1"
    assert (read_json(attempt.job) or {})["job_id"] == job_id
    events = [event.event for event in read_journals(run)]
    assert events == ["run created", "attempt claimed", "intent", "submitted"]
    assert not [path for path in run.path.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]


def test_a_refusal_stops_the_run_and_is_kept(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "refuse"

    with pytest.raises(SubmitRefused, match="Invalid account"):
        submit_new(prepared(runs), scheduler)

    status = status_of(only_run(runs), scheduler)
    assert status.state == "STOPPED"
    assert status.reason is not None
    assert status.reason.startswith("refused: Invalid account")
    assert status.attempts[0].state == "VOID"


def test_a_lost_answer_is_looked_up(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "lost"

    run, attempt, job_id = submit_new(prepared(runs), scheduler)

    assert job_id == "1"
    assert (read_json(attempt.job) or {})["job_id"] == "1"
    assert scheduler.jobs() == ["1"]
    assert "adopted" in [event.event for event in read_journals(run)]


def test_no_answer_at_all_leaves_the_attempt_open(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "deaf"

    with pytest.raises(SubmitUnknown) as caught:
        submit_new(prepared(runs), scheduler, lookup_s=0.1)

    run = only_run(runs)
    assert caught.value.exit_code == 4
    assert f"hpc-launch status {run.name}" in (caught.value.hint or "")
    assert status_of(run, scheduler).state == "SUBMITTING"


def test_the_job_that_appears_after_all_is_adopted(runs: Path, scheduler: FakeScheduler) -> None:
    run = unanswered(runs, scheduler)
    booked(scheduler, run, "77")

    assert status_of(run, scheduler, later_s=5).job_id == "77"


def test_the_next_attempt_waits_for_the_last(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, first = submit_new(prepared(runs), scheduler)
    with pytest.raises(UsageError, match="attempt 1: job 1 is PENDING"):
        submit_next(run, prepared(runs), scheduler)
    run.attempt(1).cancel.write_text("{}")
    with pytest.raises(UsageError) as refused:
        submit_next(run, prepared(runs), scheduler)
    assert refused.value.hint == f"hpc-launch watch {run.name} follows it to its end"

    scheduler.fault = "away"
    with pytest.raises(Unreachable):
        submit_next(run, prepared(runs), scheduler)

    scheduler.fault = ""
    scheduler.cancel(first)
    _, attempt, second = submit_next(run, prepared(runs, overrides={"set": ["nodes=1"]}), scheduler)
    assert (attempt.number, second) == (2, "2")
    assert status_of(run, scheduler).attempts[1].overrides.by_name() == {"set": ("nodes=1",)}


def test_an_attempt_taken_between_look_and_claim(runs: Path, scheduler: FakeScheduler) -> None:
    run, _, first = submit_new(prepared(runs), scheduler)
    scheduler.cancel(first)
    run.attempt(2).path.mkdir()

    with pytest.raises(UsageError):
        submit_next(run, prepared(runs), scheduler)

    assert scheduler.jobs() == ["1"]


def test_a_full_disk_after_sbatch_loses_no_job(
    runs: Path, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(submit_attempt, "write_job", full)
    run, attempt, job_id = submit_new(prepared(runs), scheduler)

    assert not attempt.job.exists()
    assert status_of(run, scheduler).job_id == job_id


def test_a_folder_that_cannot_be_made(tmp_path: Path, scheduler: FakeScheduler) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")

    with pytest.raises(Refused) as caught:
        submit_new(prepared(tmp_path / "runs"), scheduler)

    (finding,) = caught.value.findings
    assert finding.code == "HL501"
    assert "cannot write the run folder" in finding.message
    assert finding.hint
    assert scheduler.jobs() == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a full disk needs the right to mount a small one")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("pages", range(9))
def test_a_full_disk(tiny_disk: Path, scheduler: FakeScheduler, pages: int) -> None:
    (tiny_disk / "filler").write_bytes(b"x" * 4096 * (8 - pages))
    refused: Refused | None = None

    try:
        submit_new(prepared(tiny_disk / "runs"), scheduler)
    except Refused as error:
        refused = error

    if refused is None:
        assert pages >= 7
        assert scheduler.jobs() == ["1"]
    else:
        assert "No space left on device" in str(refused)
        assert scheduler.jobs() == []
        assert [path for path in tiny_disk.rglob("*") if path.name not in ("filler", "runs")] == []


def test_two_jobs_of_one_attempt(runs: Path, scheduler: FakeScheduler) -> None:
    run = unanswered(runs, scheduler)
    booked(scheduler, run, "9")
    booked(scheduler, run, "10")

    # None has begun: the lowest number counts. Then the other begins first, and its claim is law.
    assert status_of(run, scheduler, later_s=5).job_id == "9"
    assert scheduler.start("10")
    assert not scheduler.start("9")
    status = status_of(run, scheduler, later_s=6)
    assert (status.job_id, status.state) == ("10", "STARTING")


def test_a_refused_submission_that_slurm_booked_is_no_job(runs: Path, scheduler: FakeScheduler) -> None:
    run = unanswered(runs, scheduler)
    booked(scheduler, run, "3", folder="", state="FAILED", exit_code=1, submitted=5.0, ended=5.0)

    assert status_of(run, scheduler, later_s=5).state == "SUBMITTING"
    # This process is alive, so only time gives it up.
    assert status_of(run, scheduler, later_s=GRACE_S + 5).state == "SUBMITTING"
    assert status_of(run, scheduler, later_s=601).state == "STOPPED"


def test_a_void_attempt_ends_a_job_that_comes_late(runs: Path, scheduler: FakeScheduler) -> None:
    run, attempt, job_id = submit_new(prepared(runs), scheduler)
    assert create_once(attempt.claim, "void never submitted\n")

    assert not scheduler.start(job_id)
    assert status_of(run, scheduler).state == "STOPPED"


def test_the_cause_of_a_submission_without_an_answer_is_kept(runs: Path, scheduler: FakeScheduler) -> None:
    run = unanswered(runs, scheduler)
    scheduler.fault = ""

    status = status_of(run, scheduler, later_s=GIVE_UP_S + 1)

    assert (status.state, status.undecided) == ("STOPPED", False)
    assert status.reason == "never submitted: Socket timed out on send/recv operation"


def test_with_wait_a_submission_outlasts_a_scheduler_that_is_away(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "down"
    told: list[str] = []

    def wait(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            scheduler.fault = ""

    run, attempt, job_id = submit_new(prepared(runs), scheduler, lookup_s=0.1, wait=wait)

    assert (job_id, scheduler.jobs(), attempt.number) == ("1", ["1"], 1)
    assert "the scheduler does not answer: Socket timed out" in told[0]
    assert "the scheduler does not answer: Unable to contact slurm controller" in told[1]
    assert scheduler.start("1"), "the job that was submitted at last is the attempt's"
    assert status_of(run, scheduler).state in ("STARTING", "RUNNING")


def test_with_wait_a_job_that_was_taken_without_an_answer_is_not_submitted_again(
    runs: Path, scheduler: FakeScheduler
) -> None:
    scheduler.fault = "lost"
    _, _, job_id = submit_new(prepared(runs), scheduler, wait=lambda _: None)
    assert (job_id, scheduler.jobs()) == ("1", ["1"])


def test_a_cancel_ends_a_submission_that_waits(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "down"

    def wait(_: str) -> None:
        cancel_run(only_run(runs), scheduler)

    with pytest.raises(UsageError, match="was abandoned meanwhile: cancelled by"):
        submit_new(prepared(runs), scheduler, lookup_s=0.1, wait=wait)

    scheduler.fault = ""
    assert scheduler.jobs() == []
    assert status_of(only_run(runs), scheduler).state == "CANCELLED"


def test_the_cluster_is_known_where_the_controller_goes_away_after_sbatch(runs: Path, tmp_path: Path) -> None:
    class GoesAway(FakeScheduler):
        def cluster(self) -> str | None:
            return None if self.jobs() else "here"

    _, attempt, _ = submit_new(prepared(runs), GoesAway(tmp_path / "scheduler"))
    assert (read_json(attempt.job) or {})["cluster"] == "here"


@pytest.mark.parametrize(("mode", "said"), [(0o777, "chmod o-w"), (0o1777, None)])
def test_a_folder_that_every_user_can_change_is_refused_with_the_way_out(
    tmp_path: Path, scheduler: FakeScheduler, mode: int, said: str | None
) -> None:
    above = tmp_path / "open to all"
    above.mkdir()
    above.chmod(mode)
    if said is None:
        submit_new(prepared(above / "runs"), scheduler)
        return
    with pytest.raises(Refused) as caught:
        submit_new(prepared(above / "runs"), scheduler)
    hint = caught.value.findings[0].hint or ""
    assert f"{said} '{above}'" in hint
    assert "space" not in hint
