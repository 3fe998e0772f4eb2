"""The shared answer: one question for many, the truth about what is not known, and no folder that it depends on."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.schedulers.slurm import shared_query
from hpc_launch.schedulers.slurm.shared_query import FLOOR_S, SharedAnswer
from tests.busy import patience


def record(job_id: str, state: str = "RUNNING", ended: float | None = None) -> JobRecord:
    return JobRecord(job_id, state, "squeue", as_of=time.time(), ended=ended, steps=(("batch", state, "0:0"),))


class Slurm:
    """Answers for some jobs, and counts how often it was asked."""

    def __init__(self, *jobs: JobRecord) -> None:
        self.jobs = list(jobs)
        self.asked: list[list[str]] = []
        self.error: Unreachable | None = None

    def __call__(self, job_ids: list[str], known: Mapping[str, JobRecord]) -> list[JobRecord]:
        self.asked.append(sorted(job_ids))
        if self.error:
            raise self.error
        return self.jobs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "hpc-launch" / "slurm-host-1000.json"


def rewind(file: Path, seconds: float) -> None:
    """Make the last question older."""
    value = json.loads(file.read_text())
    value["asked"] -= seconds
    file.write_text(json.dumps(value))


def test_the_name_of_the_cluster_is_asked_once_a_day(file: Path) -> None:
    names = [None, "west", "east"]
    told = [SharedAnswer(file).cluster(lambda: names.pop(0)) for _ in range(3)]
    assert (told, names) == ([None, "west", "west"], ["east"])
    value = json.loads(file.read_text())
    file.write_text(json.dumps({**value, "named": value["named"] - shared_query.NAME_KEPT_S}))
    assert SharedAnswer(file).cluster(lambda: names.pop(0)) == "east"


def test_one_question_in_ten_seconds(file: Path) -> None:
    slurm = Slurm(record("1"), record("2"))
    assert SharedAnswer(file).about(["1"], slurm).keys() == {"1"}
    assert SharedAnswer(file).about(["1", "2"], slurm).keys() == {"1", "2"}
    assert slurm.asked == [["1"]]
    rewind(file, FLOOR_S)
    SharedAnswer(file).about(["2"], slurm)
    assert slurm.asked == [["1"], ["1", "2"]]
    SharedAnswer(file).about(["2"], slurm, fresh=True)
    assert len(slurm.asked) == 3
    assert SharedAnswer(file).about(["1"], slurm)["1"].steps == (("batch", "RUNNING", "0:0"),)


def test_all_jobs_are_asked_for_at_once_and_shared(file: Path) -> None:
    slurm = Slurm(record("1"), record("2"))
    SharedAnswer(file).about(["1"], slurm)
    slurm.jobs.append(record("3"))
    assert {job.job_id for job in SharedAnswer(file).everything(slurm)} == {"1", "2", "3"}
    assert SharedAnswer(file).about(["3"], slurm).keys() == {"3"}
    assert len(slurm.asked) == 2


def test_what_no_source_knows_is_remembered_as_such(file: Path) -> None:
    slurm = Slurm()
    assert SharedAnswer(file).about(["7"], slurm) == {}
    assert SharedAnswer(file).about(["7"], slurm) == {}
    assert len(slurm.asked) == 1


def test_a_job_newer_than_the_answer_waits_for_the_next(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_query, "FLOOR_S", 1.0)
    slurm = Slurm(record("1"))
    SharedAnswer(file).about(["1"], slurm)
    slurm.jobs.append(record("2"))
    assert SharedAnswer(file).about(["2"], slurm).keys() == {"2"}
    assert len(slurm.asked) == 2


def test_a_submitted_job_is_known_at_once(file: Path) -> None:
    slurm = Slurm(record("1"))
    SharedAnswer(file).about(["1"], slurm)
    SharedAnswer(file).note(record("2", "PENDING"))
    assert SharedAnswer(file).about(["2"], slurm)["2"].state == "PENDING"
    assert len(slurm.asked) == 1


def test_trouble_is_shared_and_asked_about_less_often(file: Path) -> None:
    slurm = Slurm(record("1"))
    SharedAnswer(file).about(["1"], slurm)
    slurm.error = Unreachable("Socket timed out", "wait")
    rewind(file, FLOOR_S)
    for _ in range(3):
        with pytest.raises(Unreachable, match="Socket timed out"):
            SharedAnswer(file).about(["1"], slurm)
    assert len(slurm.asked) == 2
    rewind(file, FLOOR_S)
    with pytest.raises(Unreachable):
        SharedAnswer(file).about(["1"], slurm)
    assert len(slurm.asked) == 2
    rewind(file, FLOOR_S)
    slurm.error = None
    assert SharedAnswer(file).about(["1"], slurm).keys() == {"1"}


def test_an_ended_job_that_left_the_queue_stays_known(file: Path) -> None:
    slurm = Slurm(record("1", "FAILED", ended=time.time()), record("2"))
    SharedAnswer(file).about(["1", "2"], slurm)
    slurm.jobs = []
    # A job that ran and is gone is not said to run.
    assert SharedAnswer(file).about(["1", "2"], slurm, fresh=True).keys() == {"1"}


def test_an_old_answer_does_not_replace_a_newer_one(file: Path) -> None:
    def slow(job_ids: list[str], known: Mapping[str, JobRecord]) -> list[JobRecord]:
        SharedAnswer(file).about(["1"], Slurm(record("1", "COMPLETED", ended=1.0)), fresh=True)
        return [record("1", "RUNNING")]

    SharedAnswer(file).about(["1"], slow)
    assert SharedAnswer(file).about(["1"], Slurm())["1"].state == "COMPLETED"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_text('{"asked": '),
        lambda file: file.write_text('{"records": {"1": {"new": 1}}}'),
        lambda file: file.with_suffix(".lock").unlink() or file.with_suffix(".lock").mkdir(),
    ],
)
def test_a_spoilt_file_is_no_answer(file: Path, spoil: Callable[[Path], object]) -> None:
    SharedAnswer(file).about(["1"], Slurm(record("1")))
    spoil(file)
    assert SharedAnswer(file).about(["1"], Slurm(record("1"))).keys() == {"1"}


def test_without_a_folder_each_process_has_its_own_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shared = SharedAnswer(tmp_path / "file" / "slurm.json")
    slurm = Slurm(record("1"))
    for _ in range(3):
        assert shared.about(["1"], slurm).keys() == {"1"}
    assert len(slurm.asked) == 1


def test_its_files_are_private(file: Path) -> None:
    SharedAnswer(file).about(["1"], Slurm(record("1")))
    assert {path.stat().st_mode & 0o777 for path in file.parent.iterdir()} == {0o600}
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_question_asked_while_one_waits_for_the_lock_serves_it_too(file: Path) -> None:
    SharedAnswer(file).about(["1"], Slurm(record("1")))
    rewind(file, 2 * FLOOR_S)
    slurm = Slurm(record("1"))
    with file.with_suffix(".lock").open() as lock, ThreadPoolExecutor() as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threads.submit(SharedAnswer(file).about, ["1"], slurm)
        time.sleep(0.3)
        rewind(file, json.loads(file.read_text())["asked"] - time.time())
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert waiting.result().keys() == {"1"}
    assert slurm.asked == []


def _ask_and_freeze(path: str) -> None:
    def frozen(job_ids: list[str], known: Mapping[str, JobRecord]) -> list[JobRecord]:
        os.kill(os.getpid(), signal.SIGSTOP)
        return []

    SharedAnswer(Path(path)).about(["1"], frozen)


def test_a_process_frozen_while_it_asks_stops_nobody(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_query, "FLOOR_S", 0.5)
    child = multiprocessing.get_context("spawn").Process(target=_ask_and_freeze, args=(str(file),))
    child.start()
    try:
        end = time.monotonic() + 20
        while not file.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.2)
        begin = time.monotonic()
        assert SharedAnswer(file).about(["1"], Slurm(record("1"))).keys() == {"1"}
        assert time.monotonic() - begin < patience(5)
    finally:
        child.kill()
        child.join()
