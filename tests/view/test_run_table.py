from __future__ import annotations

from typing import Any

import pytest

from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view import run_table
from hpc_launch.view.format_values import display_width
from tests.view.samples import HOSTILE, NOW, Terminal, attempt, status, steers


@pytest.fixture
def runs() -> list[RunStatus]:
    long = "the scheduler says FAILED by signal 9; the script left no end record"
    return [
        status(),
        status(run="tiny-2", state="PENDING", reason="Priority", attempts=(attempt(started=None, state="PENDING"),)),
        status(run="tiny-3", state="FAILED", reason=long, attempts=(attempt(state="FAILED", ended=NOW - 130),)),
        status(run="tiny-4", state="SUBMITTING", job_id=None, attempts=()),
    ]


def test_all_columns_without_a_terminal(runs: list[RunStatus]) -> None:
    lines = run_table.table_lines(runs, now=NOW)
    assert lines[0].split() == ["RUN", "STATE", "TIME", "STEP", "LOSS", "JOB", "SITE", "WHY"]
    assert lines[1].split() == "tiny-1 RUNNING 50 s left 40/200 2.31 4711 test".split()
    assert "Priority" in lines[2]
    assert lines[3].endswith("the script left no end record")
    assert "2 m ago" in lines[3]
    assert not steers("\n".join(lines))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_name_and_state_stay_and_the_rest_fits(runs: list[RunStatus], width: int) -> None:
    lines = run_table.table_lines(runs, width=width, now=NOW)
    assert lines[0].split()[:2] == ["RUN", "STATE"]
    assert [line.split()[:2] for line in lines[1:]] == [[run.run, run.state] for run in runs]
    assert max(map(display_width, lines)) <= width


def test_the_hosts_of_a_run_fit_beside_the_rest(runs: list[RunStatus], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [status(hosts=tuple(f"gpu{n}" for n in (3, 1, 2))), status(hosts=tuple("abcdefgh")), *runs]
    lines = run_table.table_lines(runs, now=NOW)
    assert "gpu[1-3]" in lines[1]
    assert "a,b,c,d,e,f,g,h" in lines[2]
    for width in (60, 80, 100, 200):
        shown = show(runs, monkeypatch, COLUMNS=str(width), NO_COLOR="1").splitlines()[1:]
        assert max(map(display_width, shown)) <= width
        assert ("gpu[1-3]" in shown[0]) == (width >= 80)


def test_empty_columns_are_left_out() -> None:
    (header, _) = run_table.table_lines([status(state="SUBMITTING", job_id=None, attempts=())], now=NOW)
    assert "WHY" not in header
    assert "JOB" not in header


def show(runs: list[RunStatus], monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "60", **environment}.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    run_table.show(runs, stream)
    return stream.getvalue()


def test_on_a_terminal_it_has_colour_and_keeps_to_the_width(
    runs: list[RunStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[36m\x1b[1mRUNNING" in show(runs, monkeypatch)
    plain = show(runs, monkeypatch, NO_COLOR="1")
    assert "\x1b[36m" not in plain
    assert "\x1b" not in show(runs, monkeypatch, TERM="dumb")


def test_a_name_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tiny-gpt-with-a-long-name-261121-095025-393f"
    assert name in show([status(run=name)], monkeypatch, COLUMNS="20")


@pytest.mark.parametrize("field", ["run", "site", "reason", "job_id"])
def test_hostile_values_stay_text(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {field: HOSTILE}
    assert not steers("\n".join(run_table.table_lines([status(**changes)], now=NOW)))
    shown = show([status(**changes)], monkeypatch, COLUMNS="300")
    assert "[bold]" in shown
    assert [part for part in ("\x1b[2J", "\x1b]", "\x9b", "\u202e", "\x07") if part in shown] == []
