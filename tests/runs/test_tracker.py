"""Following runs in time: the clock is the test's own, the files and the scheduler are real."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from hpc_launch.diagnose.diagnosis import Diagnosis, Verdict
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.verdict_record import keep_verdict, verdict_record
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.status.wait_for_end import pauses
from hpc_launch.runs.submitting.submit_attempt import submit_new, submit_next
from hpc_launch.view.state_text import one_line, waiting_parts
from tests.runs.fake import Clock, FakeScheduler
from tests.runs.samples import node_log, prepared, read_json


class Following:
    """A run under a clock of the test's own, and what was told of it."""

    def __init__(self, tmp_path: Path, *, source: str = "squeue", **changes: str) -> None:
        self.clock = Clock()
        self.scheduler = FakeScheduler(tmp_path / "scheduler", clock=self.clock, source=source)
        self.run, self.attempt, self.job = submit_new(prepared(tmp_path / "runs", **changes), self.scheduler)
        self.tracker = RunTracker([self.run], lambda _: self.scheduler, clock=self.clock)
        self.told: list[tuple[float, RunStatus]] = []

    def start(self) -> None:
        self.scheduler.start(self.job)
        self.scheduler.speak(self.job, "[rank0]: step 1/10 loss 3.5")

    def wait(self) -> RunStatus:
        def show(statuses: Iterable[RunStatus]) -> None:
            self.told += [(self.clock.now, status) for status in statuses]

        for pause_s in pauses(self.tracker, [self.run], show):
            self.clock.sleep(pause_s)
        return self.tracker.last[self.run.name]

    @property
    def states(self) -> list[str]:
        """The run's states in the order they came, each once."""
        states = [status.state for _, status in self.told]
        return [state for at, state in enumerate(states) if at == 0 or states[at - 1] != state]


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path)


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_from_queue_to_end(following: Following) -> None:
    one = following
    one.clock.at(20, one.start)
    one.clock.at(95, lambda: one.scheduler.end(one.job))
    begun = one.clock.now

    status = one.wait()

    assert status.state == "COMPLETED"
    assert one.states[0] == "PENDING"
    assert one.states[-3:] in (["RUNNING", "ENDING", "COMPLETED"], ["STARTING", "RUNNING", "COMPLETED"])
    assert one.clock.now - begun - 95 <= 3
    assert min(gaps(one.scheduler.asked("query"))) >= 10
    assert status.progress.step == 1


@pytest.mark.parametrize(("kind", "before", "then"), [("ssh", ("b", "a", "c"), ("n1", "n2", "c")), ("slurm", (), ())])
def test_an_active_run_without_slurm_has_hosts(
    tmp_path: Path, kind: str, before: tuple[str, ...], then: tuple[str, ...]
) -> None:
    one = Following(
        tmp_path, scheduler=kind, script="#!/bin/bash\n#HOST b slots=2\n#HOST a slots=1\n#SPARE c slots=1\ntrue\n"
    )
    one.scheduler.fault = "away"
    assert one.tracker.poll()[one.run.name].hosts == before
    one.scheduler.fault = ""
    one.start()
    assert one.tracker.poll(fresh=True)[one.run.name].hosts == then
    one.scheduler.end(one.job)
    assert one.wait().hosts == ()


def test_what_was_decided_at_the_end_is_in_the_last_status(following: Following) -> None:
    one = following
    one.start()
    one.clock.at(10, lambda: one.scheduler.end(one.job, 1))

    def decides(status: RunStatus) -> bool:
        assert status.undecided
        told = Diagnosis("import_error")
        verdict = Verdict("STOP", "import_error: install it")
        keep_verdict(one.attempt, verdict_record(told, verdict, one.clock.now, further=False, step=None))
        return False

    for pause_s in pauses(one.tracker, [one.run], continues=decides):
        one.clock.sleep(pause_s)

    status = one.tracker.last[one.run.name]
    assert (status.state, status.undecided) == ("FAILED", False)
    assert "install it" in (status.reason or "")


def test_the_end_of_a_job_without_end_record_comes_with_the_next_answer(following: Following) -> None:
    one = following
    one.start()
    one.clock.at(33, lambda: one.scheduler.set(one.job, state="NODE_FAIL", ended=one.clock.now))
    begun = one.clock.now

    status = one.wait()

    assert status.state == "FAILED"
    assert status.attempts[0].state == "NODE_FAIL"
    assert one.clock.now - begun < 33 + 10 + 10 + 3


def test_a_controller_that_is_away_is_waited_for(following: Following) -> None:
    one = following
    one.start()

    def away() -> None:
        one.scheduler.fault = "away"

    def back() -> None:
        one.scheduler.fault = ""
        one.scheduler.set(one.job, state="TIMEOUT", ended=one.clock.now)

    one.clock.at(15, away)
    one.clock.at(1000, back)

    status = one.wait()

    assert status.state == "FAILED"
    assert any("has not answered since" in (told.reason or "") for _, told in one.told)
    assert min(gaps(one.scheduler.asked("query"))) >= 10


def test_stuck_needs_two_answers(tmp_path: Path) -> None:
    one = Following(tmp_path)
    one.scheduler.set(one.job, reason="JobHeldUser")
    begun = one.clock.now

    status = one.wait()

    assert (status.state, status.reason) == (
        "STUCK",
        "JobHeldUser: The job is held by its owner or an account coordinator. Release it: scontrol release 1.",
    )
    assert len(one.scheduler.asked("query")) == 2
    assert 10 <= one.clock.now - begun <= 12


def test_a_passing_reason_is_not_stuck(tmp_path: Path) -> None:
    one = Following(tmp_path)
    one.scheduler.set(one.job, reason="PartitionTimeLimit")
    one.clock.at(5, lambda: one.scheduler.set(one.job, reason="Priority"))
    one.clock.at(30, one.start)
    one.clock.at(60, lambda: one.scheduler.end(one.job))

    assert one.wait().state == "COMPLETED"


def test_a_job_that_nobody_knows_is_not_waited_for_for_ever(following: Following) -> None:
    one = following
    one.start()
    one.clock.at(20, lambda: one.scheduler.forget(one.job))
    begun = one.clock.now

    status = one.wait()

    assert status.state == "UNKNOWN"
    assert "it was last seen RUNNING" in (status.reason or "")
    assert one.clock.now - begun < 120


def test_a_preempted_job_that_comes_back_is_followed_on(following: Following) -> None:
    one = following
    one.start()
    one.clock.at(20, lambda: one.scheduler.set(one.job, state="PREEMPTED", ended=one.clock.now))
    one.clock.at(27, lambda: one.scheduler.set(one.job, state="PENDING", ended=None, restarts=1, reason="BeginTime"))
    one.clock.at(200, lambda: one.scheduler.set(one.job, state="CANCELLED", ended=one.clock.now))

    status = one.wait()

    assert status.state == "CANCELLED"
    assert "PENDING" in one.states[2:]


def test_the_last_word_is_kept_for_when_the_scheduler_forgot(following: Following) -> None:
    one = following
    one.start()
    one.scheduler.set(one.job, state="TIMEOUT", ended=one.clock.now)
    one.attempt.final.write_text("")  # as a crash of the machine may leave it

    assert one.wait().state == "FAILED"
    assert (read_json(one.attempt.final) or {})["state"] == "TIMEOUT"
    one.scheduler.forget(one.job)

    later = RunTracker([one.run], lambda _: one.scheduler).poll()[one.run.name]
    assert (later.state, later.attempts[0].state) == ("FAILED", "TIMEOUT")


@pytest.mark.parametrize("printed", ["", "hello"])
def test_a_program_that_ends_well_without_a_step_has_not_trained(tmp_path: Path, printed: str) -> None:
    saved = {"checkpoint": {"dir": [str(tmp_path / "saved")], "pattern": r"step-(\d+)"}}
    one = Following(tmp_path, plan={"progress": {"step": r"step (\d+)/(\d+)"}, **saved})  # type: ignore[arg-type]
    one.scheduler.start(one.job)
    one.scheduler.speak(one.job, printed)
    one.attempt.first_log.write_text(printed)
    one.scheduler.end(one.job)
    one.scheduler.set(one.job, state="COMPLETED", ended=one.clock.now)
    one.clock.sleep(61)
    status = one.tracker.poll()[one.run.name]
    assert (status.state, "nothing shows that it trained" in (status.reason or "")) == ("FAILED", True)


def test_a_completed_job_without_step_codes_is_not_final_at_once(following: Following) -> None:
    one = following
    one.start()
    one.scheduler.end(one.job)
    one.scheduler.set(one.job, state="COMPLETED", ended=one.clock.now)
    one.tracker.poll()
    assert not one.attempt.final.exists()

    one.clock.sleep(61)
    one.scheduler.source = "sacct"
    one.scheduler.set(one.job, derived_exit_code=125)

    assert one.tracker.poll()[one.run.name].state == "FAILED"
    assert one.attempt.final.exists()


def test_the_local_scheduler_may_be_asked_each_second(tmp_path: Path) -> None:
    one = Following(tmp_path, source="local")
    one.start()
    one.clock.at(5, lambda: one.scheduler.set(one.job, state="FAILED", exit_code=9, ended=one.clock.now))
    begun = one.clock.now

    assert one.wait().state == "FAILED"
    assert one.clock.now - begun <= 7


def test_many_runs_are_one_question(tmp_path: Path) -> None:
    scheduler = FakeScheduler(tmp_path / "scheduler")
    runs = [submit_new(prepared(tmp_path / "runs"), scheduler)[0] for _ in range(5)]

    states = RunTracker(runs, lambda _: scheduler).poll()

    assert [status.state for status in states.values()] == ["PENDING"] * 5
    assert len(scheduler.asked("query")) == 1


def test_a_requeued_job_makes_the_next_attempt_itself(following: Following) -> None:
    one = following
    one.start()
    second = one.run.attempt(2)
    second.logs.mkdir(parents=True)
    second.claim.write_text(f"{one.job}\n")
    second.job.write_text(f'{{"job_id": "{one.job}", "submitted": {one.clock.now}, "restart": 1}}')
    second.start.write_text(f'{{"job_id": "{one.job}", "restart": 1, "started": {one.clock.now}}}')
    node_log(second).write_text("step 7/10 loss 2.0\n")
    one.scheduler.set(one.job, restarts=1)

    status = one.tracker.poll()[one.run.name]

    assert [attempt.state for attempt in status.attempts] == ["REQUEUED", "RUNNING"]
    assert (status.state, status.progress.step) == ("RUNNING", 7)


def test_a_run_without_a_folder_is_no_fault(tmp_path: Path) -> None:
    scheduler = FakeScheduler(tmp_path / "scheduler")
    run = RunFolder(tmp_path / "gone")

    assert RunTracker([run], lambda _: scheduler).poll()["gone"].state == "UNKNOWN"


@pytest.mark.parametrize("moved", [False, True])
def test_a_run_folder_that_was_moved_or_deleted_ends_the_wait(following: Following, *, moved: bool) -> None:
    one = following
    one.start()

    def vanish() -> None:
        if moved:
            one.run.path.rename(one.run.path.with_name("elsewhere"))
        else:
            shutil.rmtree(one.run.path)

    one.clock.at(15, vanish)
    begun = one.clock.now

    status = one.wait()

    assert (status.state, status.folder_missing) == ("UNKNOWN", True)
    assert f"the run folder {one.run.path} no longer exists: it was moved or deleted" in (status.reason or "")
    assert f"job {one.job} is RUNNING (`scancel {one.job}` ends it)" in (status.reason or "")
    assert "began to submit" not in (status.reason or "")
    assert one.clock.now - begun < 15 + 10 + 5
    assert not one.run.path.exists(), "nothing creates it again"


def test_a_file_server_that_does_not_answer_is_waited_for(following: Following) -> None:
    one = following
    one.start()
    attempts = one.run.attempts_folder
    one.clock.at(15, lambda: attempts.rename(attempts.with_name("away")))
    one.clock.at(16, lambda: attempts.symlink_to(attempts))  # every look fails with ELOOP, not with ENOENT
    one.clock.at(60, attempts.unlink)
    one.clock.at(60, lambda: attempts.with_name("away").rename(attempts))
    one.clock.at(70, lambda: one.scheduler.end(one.job))

    assert one.wait().state == "COMPLETED"
    assert any("cannot be read" in (status.reason or "") for _, status in one.told)


def test_a_retry_shows_its_class_its_pause_and_its_expected_start(following: Following) -> None:
    one = following
    one.start()
    one.scheduler.end(one.job, 1)
    one.scheduler.set(one.job, state="FAILED", exit_code=1, ended=one.clock.now)
    one.clock.sleep(20)
    verdict = Verdict("RETRY", "nccl_timeout", delay_s=30)
    keep_verdict(
        one.attempt, verdict_record(Diagnosis("nccl_timeout"), verdict, one.clock.now, further=False, step=None)
    )

    status = one.tracker.poll(fresh=True)[one.run.name]
    assert status.state == "RETRYING"
    assert waiting_parts(status, one.clock.now)[0] == "after nccl_timeout (RETRY)"
    assert waiting_parts(status, one.clock.now)[1].endswith("(30 s left)")

    _, _, second = submit_next(one.run, prepared(one.run.path.parent), one.scheduler)
    one.scheduler.set(second, reason="BeginTime", expected_start=one.clock.now + 480)
    one.clock.sleep(10)
    status = one.tracker.poll(fresh=True)[one.run.name]
    assert (status.state, status.expected_start) == ("PENDING", one.clock.now + 470)
    after, pause, start = waiting_parts(status, one.clock.now)
    assert (after, pause[-11:], start[-13:]) == ("after nccl_timeout (RETRY)", "(20 s left)", "(in 7 m 50 s)")
    assert after in one_line(status, one.clock.now)
    one.clock.sleep(25)
    assert len(waiting_parts(status, one.clock.now)) == 2, "the pause is over"

    one.scheduler.start(second)
    one.clock.sleep(10)
    status = one.tracker.poll(fresh=True)[one.run.name]
    assert waiting_parts(status, one.clock.now) == []


def test_checkpoints_that_match_no_pattern_are_named_while_the_first_attempt_runs(tmp_path: Path) -> None:
    clock = Clock()
    scheduler = FakeScheduler(tmp_path / "scheduler", clock=clock)
    saved = tmp_path / "saved"
    plan = {"checkpoint": {"dir": [str(saved)], "pattern": r"step-(\d+)"}}
    run, _, job = submit_new(prepared(tmp_path / "runs", plan=plan), scheduler)
    tracker = RunTracker([run], lambda _: scheduler, clock=clock)
    scheduler.start(job)
    scheduler.speak(job, "[rank0]: step 1/10 loss 3.5")
    assert tracker.poll(fresh=True)[run.name].warnings == ()
    saved.mkdir()
    (saved / "ckpt_5.pt").write_bytes(b"PK")
    clock.sleep(20)
    assert tracker.poll(fresh=True)[run.name].warnings == (), "it may be written still"
    clock.sleep(31)

    (warning,) = tracker.poll(fresh=True)[run.name].warnings

    assert "no checkpoint is recognized" in warning
    assert "such as ckpt_5.pt" in warning
    (saved / "step-5").mkdir()
    clock.sleep(31)
    (warning,) = tracker.poll(fresh=True)[run.name].warnings
    assert "step-5 is incomplete: it holds no file" in warning
    (saved / "step-5" / "model.bin").write_bytes(b"weights")
    clock.sleep(31)
    assert tracker.poll(fresh=True)[run.name].warnings == ()
