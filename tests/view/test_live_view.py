from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path

import pytest

from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.view.live_view import LineFollower, LiveFollower, follower
from tests.view.samples import HOSTILE, Terminal, attempt, status, steers


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)


def test_the_stream_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, kind in ((io.StringIO(), LineFollower), (Terminal(), LiveFollower)):
        display = follower(stream, many=False)
        assert isinstance(display, kind)
        display.close()
    monkeypatch.setenv("TERM", "dumb")
    display = follower(Terminal(), many=False)
    assert isinstance(display, LineFollower)
    display.close()


def test_a_line_for_each_change_and_none_for_a_moving_number() -> None:
    stream = io.StringIO()
    display = LineFollower(stream, many=False)
    for second in range(3):
        display.update(status(state="SUBMITTING", reason=f"began {second} s ago", progress=Progress(), attempts=()))
    display.update(status(progress=Progress(40, 200, 2.31, None, 35.0)))
    display.update(status(progress=Progress(41, 200, 2.30, None, 34.0)))
    display.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"\d\d:\d\d:\d\d submitting \(began 0 s ago\), job 4711", lines[0])
    assert re.search(r" running for .*, step 40/200, loss 2.31, 35 s left$", lines[1])
    assert not steers(stream.getvalue())


def test_the_heart_beats_though_nobody_calls() -> None:
    stream = io.StringIO()
    display = LineFollower(stream, many=False, heartbeat_s=0.05)
    time.sleep(0.3)
    display.update(status())
    time.sleep(0.3)
    display.close()
    lines = stream.getvalue().splitlines()
    assert "reading the runs for 0 s" in lines[0]
    assert sum("running" in line for line in lines) >= 2


def test_the_heartbeat_of_many_counts_them() -> None:
    stream = io.StringIO()
    display = LineFollower(stream, many=True, heartbeat_s=0.05)
    display.update(status())
    display.update(status(run="tiny-2", progress=Progress(7, 9)))
    display.update(status(run="tiny-3", state="FAILED"))
    time.sleep(0.2)
    display.close()
    assert "tiny-2: running" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].endswith("3 runs: 2 running, 1 failed; step 40/200, step 7/9")


def test_a_reader_that_has_gone_ends_nothing() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        os.close(read)
        display = LineFollower(stream, many=False)
        display.update(status())
        display.update(status(state="FAILED"))
        display.close()
        # What the stream still holds is lost at its close, which must not raise either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_one_run_live(tmp_path: Path) -> None:
    folder = tmp_path / "attempts" / "001"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "node-0.log").write_text("[rank0]: step 40/200 \x1b[2J[red]loss[/red] 2.31\n[rank1]: other\n")
    stream = Terminal()
    display = LiveFollower(stream, many=False)
    display.update(status(attempts=(attempt(folder, started=time.time() - 35),)))
    time.sleep(0.4)
    display.close()
    text = stream.getvalue()
    assert "RUNNING\x1b[0m, from squeue 4 s ago" in text
    assert "20%" in text
    assert "step 40/200, loss 2.31, 3.2 steps/s, 50 s left" in text
    assert "| step 40/200 [red]loss[/red] 2.31" in text
    assert "other" not in text
    assert "\x1b[2J" not in text
    assert "Ctrl-C stops watching; the job keeps running" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor must come back"


def test_many_runs_live_fit_the_height(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "10")
    stream = Terminal()
    display = LiveFollower(stream, many=True)
    display.update(status(run="over-1", state="COMPLETED"))
    for number in range(20):
        display.update(status(run=f"tiny-{number}"))
    time.sleep(0.4)
    display.close()
    last = stream.getvalue().rsplit("RUN ", 1)[1]
    assert "and 15 more" in last
    assert "over-1" not in last
    assert last.count("tiny-") == 6


def test_hostile_values_do_not_steer_the_display() -> None:
    stream = Terminal()
    for many in (False, True):
        display = LiveFollower(stream, many=many)
        display.update(
            status(run=HOSTILE, reason=HOSTILE, job_id=HOSTILE, site=HOSTILE, attempts=(attempt(nodes=(HOSTILE,)),))
        )
        time.sleep(0.3)
        display.close()
    ours = re.sub(r"\x1b\[[0-9;]*[mAK]|\x1b\[\?25[lh]|\r", "", stream.getvalue())
    assert not steers(ours)
    assert "[bold]" in ours
