"""Journals of several writers, whole and torn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import Journal, read_journals
from tests.runs.fake import Clock


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
