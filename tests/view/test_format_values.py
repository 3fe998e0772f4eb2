from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.view.format_values import (
    ago,
    clean,
    clock_time,
    cut,
    display_width,
    duration,
    hosts,
    log_lines,
    number,
    pad,
    step_rate,
)
from tests.view.samples import HOSTILE, NOW


@given(st.text(st.characters()))
def test_nothing_foreign_steers_the_terminal(text: str) -> None:
    assert clean(text).isprintable()
    assert all(line.isprintable() for line in log_lines(text))


def test_what_was_there_can_still_be_read() -> None:
    assert clean("größe 図 [bold] n[1-4]") == "größe 図 [bold] n[1-4]"
    assert clean(HOSTILE) == r"a\x1b[2J\x1b]0;title\x07\x0d\x0ab\x9b31m\u202ec[bold]d\x00"
    assert clean("10\u00a0000") == "10 000"
    assert clean("\U000e0041\udcff") == r"\U000e0041\udcff"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", ["plain"]),
        ("", [""]),
        ("\x1b[1;31mred\x1b[0m and \x1b]8;;http://x\x07link\x1b]8;;\x1b\\", ["red and link"]),
        ("\r 1%\r 2%\rfailed", [" 1%", " 2%", "failed"]),
        ("a\tb", ["a       b"]),
        ("\x1b(Bshort\x1b7", ["short"]),
        ("\x1b]0;never closed", [r"0;never closed"]),
    ],
)
def test_lines_of_a_log(line: str, shown: list[str]) -> None:
    assert log_lines(line) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (35.9, "35 s"),
        (130, "2 m 10 s"),
        (3600, "1 h 00 m"),
        (11_100, "3 h 05 m"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ages_have_one_unit() -> None:
    assert [ago(age) for age in (-1, 0.9, 4, 119, 7199, 200_000)] == [
        "just now",
        "just now",
        "4 s ago",
        "1 m ago",
        "1 h ago",
        "2 d ago",
    ]


def test_moments_name_the_day_unless_it_is_today() -> None:
    assert len(clock_time(NOW, NOW)) == len("14:03:20")
    assert clock_time(NOW - 3 * 86400, NOW).count("-") == 2
    assert clock_time(1e300, NOW) == "unknown time"


def test_numbers() -> None:
    assert [number(2.3145678), number(0.00012), number(1234567.0)] == ["2.315", "0.00012", "1.235e+06"]
    assert [step_rate(3.2), step_rate(0.05)] == ["3.2 steps/s", "20 s/step"]


def test_hosts_are_put_together() -> None:
    assert hosts(("n1", "n2", "n3", "n10")) == "n[1-3,10]"
    assert hosts(("not a \x1b host", "n1")) == r"not a \x1b host,n1"
    long = hosts(tuple(f"rack{number}-gpu" for number in range(300)))
    assert long.endswith("… (300 nodes)")
    assert display_width(long) < 80


@given(st.text(), st.integers(0, 30))
def test_cut_and_pad_keep_to_the_width(text: str, width: int) -> None:
    text = clean(text)
    assert display_width(cut(text, width)) <= width
    assert display_width(pad(cut(text, width), width)) == width


def test_wide_characters_count_twice() -> None:
    assert display_width("図表") == 4
    assert cut("図表図表", 5) == "図表…"
