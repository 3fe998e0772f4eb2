"""Processes, records that change or are torn, and journals of several writers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.json_records import as_record, read_record
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.records.run_info import (
    Journal,
    ProcessRecord,
    by_this_process,
    certainly_gone,
    read_journals,
    this_process,
)
from hpc_launch.runs.records.submission import Claim, ScriptRecord
from hpc_launch.schedulers.scheduler import JobRecord
from tests.runs.fake import Clock


def test_this_process_is_there() -> None:
    me = this_process()

    assert ProcessRecord(**by_this_process()).process == me
    assert not certainly_gone(me)
    assert certainly_gone(replace(me, pid_start=(me.pid_start or "").rpartition(":")[0] + ":1"))


def test_a_process_that_ended_is_gone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    before = replace(this_process(), pid=child.pid, pid_start="")
    assert not certainly_gone(before)
    child.kill()
    child.wait()

    assert certainly_gone(before)


def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert certainly_gone(replace(this_process(), pid=child.pid))
    child.wait()


def test_what_cannot_be_looked_into_is_never_certain() -> None:
    me = this_process()

    assert not certainly_gone(replace(me, host="elsewhere", pid=2**22 + 1))
    assert not certainly_gone(replace(me, pid_start="another-boot:1:1", pid=2**22 + 1))


def test_a_file_is_read_again_when_it_changed(tmp_path: Path) -> None:
    attempt, reader = AttemptFolder(tmp_path), Reader()
    assert reader.read(attempt).end is None

    attempt.end.write_text('{"exit_code": ')
    assert reader.read(attempt).end is None

    attempt.end.write_text('{"exit_code": 0}')
    assert reader.read(attempt).end == ScriptRecord(exit_code=0)

    attempt.claim.write_text("")
    assert reader.read(attempt).claim is None
    attempt.claim.write_text("12\n")
    assert reader.read(attempt).claim == Claim(job_id="12")


def test_a_record_is_read_field_by_field() -> None:
    plan = {"nodes": "2", "world_size": "many", "sets": ["a=1", {}], "progress": 3, "recovery": {"queue": 7}, "new": 1}
    record = as_record(plan, PlanRecord)

    assert record is not None
    assert (record.nodes, record.world_size, record.sets, record.progress.step) == (2, None, ("a=1",), None)
    assert record.recovery is not None
    assert record.recovery.queue == "7"
    assert as_record({"source": "sacct"}, JobRecord) is None, "no job id, no state"
    assert as_record([], PlanRecord) is None


THREADS = """\
import sys, threading
from msgspec import Struct
from hpc_launch.base.json_records import as_type, json_as_type

SOURCE = '''
class Whole@(Struct):
    name: str
    parts: "dict[str, list[Part@]] | None" = None
    more: "tuple[Part@, ...]" = ()
class Part@(Struct):
    words: "dict[str, int] | None" = None
'''
for number in range(40):
    exec(SOURCE.replace("@", str(number)))

def read():
    for number in range(40):
        kind = globals()[f"Whole{number}"]
        together.wait()
        json_as_type('{"name": "a", "parts": {"b": [{"words": {"c": 1}}]}, "more": [{}]}', kind)
        as_type({"name": "a", "more": [{}]}, kind)

sys.setswitchinterval(1e-5)
together = threading.Barrier(8)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
"""


def test_threads_may_read_the_same_type_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_half_a_character_in_a_record_is_no_internal_error(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"run": "a\\ud800b", "keys": {"\\udfff": "\\udc80"}, "words": ["\\ud83d\\ude00"]}')
    found = read_record(path, Shown)
    assert found == Shown(run="a?b", keys={"?": "?"}, words=["\U0001f600"])
    (tmp_path / "text").write_text(str(found), encoding="utf-8")


class Shown(Struct):
    """A record with texts at all levels."""

    run: str
    keys: dict[str, str] = {}
    words: list[str] = []


def test_a_requeued_attempt_runs_the_plan_before_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for number in (1, 2, 3):
        run.attempt(number).path.mkdir(parents=True)
    run.attempt(1).plan.write_text('{"excluded": ["n1"]}')
    run.attempt(3).plan.write_text('{"excluded": ["n1", "n2"]}')

    plans = [plan_of(attempt) or PlanRecord() for attempt in run.attempts()]
    assert [plan.excluded for plan in plans] == [("n1",), ("n1",), ("n1", "n2")]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def events(run: RunFolder) -> list[str]:
    return [event.event for event in read_journals(run)]


def test_writers_are_merged_by_time(run: RunFolder) -> None:
    clock = Clock(1000.0)
    one, two = Journal(run, clock=clock), Journal(run, clock=clock)
    one.write("run created")
    clock.sleep(1)
    two.write("driver came")
    clock.sleep(1)
    one.write("submitted", attempt=1, job_id="7")

    assert events(run) == ["run created", "driver came", "submitted"]
    assert len(list(run.journal.iterdir())) == 2
    assert {event.pid for event in read_journals(run)} == {os.getpid()}


@pytest.mark.parametrize(
    "torn", [b'{"time": 5, "eve', b"\xff\xfe\n", b"[1]\n", b"\n", b'{"time": "x", "event": "a"}\n']
)
def test_a_torn_line_costs_only_itself(run: RunFolder, torn: bytes) -> None:
    Journal(run).write("run created")
    (path,) = run.journal.iterdir()
    with path.open("ab") as stream:
        stream.write(torn)
    Journal(run).write("submitted")

    assert events(run) == ["run created", "submitted"]


def test_what_cannot_be_written_is_noted_in_silence(run: RunFolder) -> None:
    run.journal.write_text("a file where the folder should be")
    journal = Journal(run)

    journal.note("driver came")
    with pytest.raises(OSError, match="journal"):
        journal.write("driver came")

    assert read_journals(run) == []
