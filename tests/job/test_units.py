"""Slurm's times and amounts of memory."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.job import units
from hpc_launch.job.units import format_memory, format_time, parse_duration, parse_memory, parse_time

HOUR = 3600
DAY = 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        # The forms of sbatch(1), --time, in its order.
        ("90", 90 * 60),
        ("12:30", 12 * 60 + 30),
        ("24:00:00", DAY),
        ("1-12", DAY + 12 * HOUR),
        ("1-12:30", DAY + 12 * HOUR + 30 * 60),
        ("1-02:03:04", DAY + 2 * HOUR + 3 * 60 + 4),
        # What Slurm takes beside them.
        ("48:00:00", 2 * DAY),
        ("0-36", 36 * HOUR),
        ("00:90:00", 90 * 60),
        ("90:00", 90 * 60),
        (120, 2 * HOUR),
        # By letters.
        ("90m", 90 * 60),
        ("90min", 90 * 60),
        ("2h", 2 * HOUR),
        ("1d12h", DAY + 12 * HOUR),
        ("1d 12h", DAY + 12 * HOUR),
        ("45s", 45),
        ("1H30M", 90 * 60),
        (" 5m ", 300),
    ],
)
def test_times(text: str | int, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "1:2:3:4",
        "1-",
        "-1-2",
        "1-2-3",
        "1.5h",
        "h",
        "5 m",
        "m5",
        "5m2h",
        "١",
        "1d\n2h",
        ":30",
        "9" * 50,
        -5,
    ],
)
def test_no_times(text: str | int) -> None:
    with pytest.raises(ValueError, match=r"time|days"):
        parse_time(text)


@pytest.mark.parametrize("text", ["0", 0, "00:00:00", "0-0", "0m", "infinite", "UNLIMITED", "Infinite", "-1"])
def test_a_time_without_an_end_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="no limit"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("00:05:00", 300), ("90s", 90), (0, 0), ("0", 0), ("0s", 0)]
)
def test_durations(text: str | int, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", [300, "300", "infinite", "5 minutes", -1])
def test_no_durations(text: str | int) -> None:
    with pytest.raises(ValueError, match=r"unit|duration"):
        parse_duration(text)


@given(st.integers(1, 10_000 * DAY))
def test_a_time_round_trips(seconds: int) -> None:
    text = format_time(seconds)
    assert parse_time(text) == seconds
    assert re.match(r"(\d+-)?\d\d:\d\d:\d\d\Z", text)


@given(st.integers(0, 9999), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_all_ways_to_write_a_time_agree(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = days * DAY + hours * HOUR + minutes * 60 + seconds
    forms = (
        f"{days}-{hours}:{minutes}:{seconds}",
        f"{days * 24 + hours}:{minutes:02}:{seconds:02}",
        f"{(days * 24 + hours) * 60 + minutes}:{seconds}",
        f"{days}d{hours}h{minutes}m{seconds}s",
        f"{days}d {hours}h {minutes}min {seconds}s",
        f"{total}s",
    )
    assert {parse_time(form) for form in forms} == {total}
    assert {parse_duration(form) for form in forms} == {total}


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("64G", 65_536),
        ("64g", 65_536),
        ("64GB", 65_536),
        ("64GiB", 65_536),
        ("64 GB", 65_536),
        ("1.5T", 1_572_864),
        ("512M", 512),
        ("512", 512),
        (512, 512),
        ("0", 0),
        (0, 0),
        ("2048K", 2),
        ("1K", 1),
        ("0.1T", 104_858),
    ],
)
def test_memory(text: str | int, mebibytes: int) -> None:
    assert parse_memory(text) == mebibytes


@pytest.mark.parametrize(
    "text", ["", "G", "1.5", "1P", "64Gi", "1..5G", ".5G", "-1", "64G\n8", "lots", "9" * 30, "1" * 50]
)
def test_no_memory(text: str) -> None:
    with pytest.raises(ValueError, match="memory"):
        parse_memory(text)


@given(st.integers(0, 2**44))
def test_memory_round_trips(mebibytes: int) -> None:
    assert parse_memory(format_memory(mebibytes)) == mebibytes


@given(st.text("0123456789:-dhmsGTi. ", max_size=12))
def test_the_patterns_of_the_schema_hold_what_is_parsed(text: str) -> None:
    for unit in units.UNITS.values():
        try:
            unit.parse(text)
        except ValueError:
            continue
        assert re.match(unit.pattern, text.strip())
