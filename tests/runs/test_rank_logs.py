"""Logs by node and rank, and following them while they grow, are cut and appear."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_launch.runs import rank_logs
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.rank_logs import follow, log_files
from tests.runs.samples import node_log


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptFolder:
    folder = AttemptFolder(tmp_path / "attempts" / "001")
    folder.logs.mkdir(parents=True)
    return folder


class Script:
    """What happens at each pause of `follow`; when nothing is left, the job is over."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self._acts = list(acts)

    def sleep(self, _seconds: float) -> None:
        self._acts.pop(0)()

    def ended(self) -> bool:
        return not self._acts


def append(path: Path, text: str) -> Callable[[], object]:
    def act() -> None:
        with path.open("a") as stream:
            stream.write(text)

    return act


def followed(attempt: AttemptFolder, script: Script, **which: int | bool | None) -> list[str]:
    return [line.text for line in follow(attempt, script.ended, sleep=script.sleep, **which)]


def test_files_by_node(attempt: AttemptFolder) -> None:
    for node in (0, 2, 10):
        node_log(attempt, node).write_text("x\n")
    attempt.batch_log.write_text("y\n")
    (attempt.logs / "else.txt").write_text("z\n")

    assert [file.node for file in log_files(attempt)] == [None, 0, 2, 10]
    assert [file.node for file in log_files(attempt, 2)] == [2]
    assert log_files(AttemptFolder(attempt.path / "none")) == []


def test_a_log_of_holes_and_zeros_is_read_at_once(attempt: AttemptFolder) -> None:
    """As a torn write on NFS leaves it, or whoever wants to fill a terminal."""
    log = node_log(attempt)
    log.write_bytes(b"first\n" + bytes(3_000_000) + b"second\n")
    with log.open("r+b") as stream:
        stream.truncate(10 << 30)
        stream.seek(0, 2)
        stream.write(b"last\n")
    begun = time.process_time()
    assert [line.text for line in follow(attempt)] == ["first", "second", "last"]
    assert time.process_time() - begun < 5


def test_lines_by_rank(attempt: AttemptFolder) -> None:
    node_log(attempt).write_bytes(b"[rank0]: a\n[rank10]: b\r\nplain\n[rank1]: \xff\n[rank1]: last")

    assert [line.text for line in follow(attempt, rank=1)] == ["[rank1]: \ufffd", "[rank1]: last"]
    assert [line.rank for line in follow(attempt)] == [0, 10, None, 1, 1]
    assert next(line.text for line in follow(attempt, rank=10)) == "[rank10]: b"


def test_a_rank_may_have_a_file_of_its_own(attempt: AttemptFolder) -> None:
    (attempt.logs / "node-1.rank-3.log").write_text("three\n")
    (attempt.logs / "node-0.rank-1.log").write_text("one\n")
    (attempt.logs / "node-0.rank-0.log").write_text("zero\n")

    assert [line.rank for line in follow(attempt)] == [0, 1, 3]
    assert [line.text for line in follow(attempt, node=0, rank=1)] == ["one"]


def test_no_line_is_torn(attempt: AttemptFolder) -> None:
    log = node_log(attempt)
    script = Script(append(log, "one\ntw"), append(log, "o\n"), append(log, "thr"), append(log, "ee"))

    assert followed(attempt, script) == ["one", "two", "three"]


def test_new_files_are_taken_up(attempt: AttemptFolder) -> None:
    script = Script(append(node_log(attempt), "a\n"), append(node_log(attempt, 1), "b\n"))

    assert followed(attempt, script) == ["a", "b"]


def test_a_file_that_was_cut_is_read_anew(attempt: AttemptFolder) -> None:
    log = node_log(attempt)
    script = Script(append(log, "a long line\n"), lambda: log.write_text("new\n"))

    assert followed(attempt, script) == ["a long line", "new"]


def test_a_file_that_was_replaced_is_read_anew(attempt: AttemptFolder) -> None:
    log = node_log(attempt)

    def rotate() -> None:
        log.rename(log.with_suffix(".old"))
        log.write_text("the second file\n")

    assert followed(attempt, Script(append(log, "first\n"), rotate)) == ["first", "the second file"]


def test_a_line_without_end_is_bounded(attempt: AttemptFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_logs, "LONGEST_LINE", 1000)
    monkeypatch.setattr(rank_logs, "_CHUNK", 600)
    node_log(attempt).write_text("x" * 3000)

    pieces = [line.text for line in follow(attempt)]

    assert "".join(pieces) == "x" * 3000
    assert max(map(len, pieces)) <= 1600
