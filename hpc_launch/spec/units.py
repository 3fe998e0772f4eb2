"""Times and amounts of memory as Slurm writes them, and in the short forms that people use.

A time is whole seconds, an amount of memory whole mebibytes. All functions raise ValueError with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_UNITS = r"(?:[0-9]+[dD] ?)?(?:[0-9]+[hH] ?)?(?:[0-9]+(?:[mM]|min) ?)?(?:[0-9]+[sS])?"
_DURATION = rf"[0-9]+(?::[0-9]+){{1,2}}|[0-9]+-[0-9]+(?::[0-9]+){{0,2}}|(?=[0-9]+[a-zA-Z]){_UNITS}"
TIME_PATTERN = rf"^(?:[0-9]+|{_DURATION})$"
DURATION_PATTERN = rf"^(?:0|{_DURATION})$"
MEMORY_PATTERN = r"^(?:[0-9]+|[0-9]+(?:\.[0-9]+)? ?[kKmMgGtT](?:i?[bB])?)$"
"""The forms, as regular expressions that Python and JSON Schema (ECMA 262) read alike."""

TIME_FORMS = "02:00:00, 1-12:00:00, 90m or 1d12h"
DURATION_FORMS = "90s, 5m, 2h or 00:05:00"
MEMORY_FORMS = "64G, 1.5T or 512M"

_MAX_S = 10_000 * 86_400  # Slurm counts limits in 32 bits of minutes; no job is asked for 27 years on purpose
_MAX_MIB = 2**44  # 16 EiB: Slurm keeps mebibytes in 64 bits and uses the upper ones as marks
_PART = re.compile(r"([0-9]+)([dhms])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_KIBIBYTES = {"k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}
_ENDLESS = ("infinite", "unlimited", "-1")


def parse_time(value: str | int) -> int:
    """Seconds of a time limit: a form of sbatch(1) `--time`, or days, hours, minutes and seconds by letter.

    A bare number is minutes and `12:30` minutes and seconds, as Slurm reads them. Zero and `infinite` are refused:
    to Slurm both mean no limit at all, which nobody wants by a slip. Each part may be larger than the next one's
    unit (`48:00:00`, `0-36`), as Slurm allows.
    """
    text = str(value).strip()
    if text.lower() in _ENDLESS:
        raise ValueError(f"{text!r} has no end; give a limit such as {TIME_FORMS}")
    if not re.match(TIME_PATTERN, text):
        raise ValueError(f"{_shown(text)} is no time; write it as {TIME_FORMS}")
    seconds = _seconds(text)
    if seconds == 0:
        raise ValueError(f"{text!r} means no limit at all to Slurm; give a limit such as {TIME_FORMS}")
    return seconds


def parse_duration(value: str | int) -> int:
    """Seconds of a span that Slurm does not read: the same forms with a unit or a colon, and a bare 0.

    Any other bare number is refused, for nothing says whether it means seconds or minutes.
    """
    text = str(value).strip()
    if re.match(r"^[0-9]+$", text) and int(text[:20]) != 0:
        raise ValueError(f"{_shown(text)} has no unit; write it as {DURATION_FORMS}")
    if not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{_shown(text)} is no span of time; write it as {DURATION_FORMS}")
    return _seconds(text)


def format_time(seconds: int) -> str:
    """`HH:MM:SS`, with `D-` before it from one day on: what sbatch takes and squeue prints in full."""
    if seconds < 0:
        raise ValueError(f"a time cannot be negative: {seconds} s")
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def parse_memory(value: str | int) -> int:
    """MiB of `64G`, `64GB`, `64GiB`, `1.5T`, `512M`; a bare number is MiB, 0 stays 0 (to Slurm: all of a node).

    All units are powers of 1024, as in sbatch(1) `--mem`, also where `GB` was written. What is no whole MiB is
    rounded up, so that a job never gets less than was asked for.
    """
    text = str(value).strip()
    if not re.match(MEMORY_PATTERN, text) or len(text) > 40:
        raise ValueError(f"{_shown(text)} is no amount of memory; write it as {MEMORY_FORMS}")
    number = text.rstrip("kKmMgGtTiIbB ")
    unit = text[len(number) :].strip()[:1].lower() or "m"
    whole, _, fraction = number.partition(".")
    # In integers, because 0.1 T is no binary number of floating point.
    scale: int = 1024 * 10 ** len(fraction)
    mebibytes = -(-int(whole + fraction) * _KIBIBYTES[unit] // scale)
    if mebibytes > _MAX_MIB:
        raise ValueError(f"{_shown(text)} is more memory than any machine has")
    return mebibytes


def format_memory(mebibytes: int) -> str:
    """The shortest form that Slurm reads back to the same amount: `64G`, `1536M`, `2T`, `0`."""
    if mebibytes < 0:
        raise ValueError(f"an amount of memory cannot be negative: {mebibytes} MiB")
    if mebibytes == 0:
        return "0"
    for unit, size in (("T", 1024**2), ("G", 1024)):
        if mebibytes % size == 0:
            return f"{mebibytes // size}{unit}"
    return f"{mebibytes}M"


class Unit(NamedTuple):
    """How the values of a unit are read, written and described."""

    parse: Callable[[str | int], int]
    write: Callable[[int], str]
    words: str
    pattern: str
    """The texts that it takes, for the JSON schema."""
    minimum: int
    """The least bare number that it takes."""
    maximum: int | None
    """The largest bare number that the JSON schema lets through."""


UNITS = {
    "time": Unit(parse_time, format_time, f"a time such as {TIME_FORMS}", TIME_PATTERN, 1, None),
    "duration": Unit(parse_duration, format_time, f"a time such as {DURATION_FORMS}", DURATION_PATTERN, 0, 0),
    "memory": Unit(parse_memory, format_memory, f"memory such as {MEMORY_FORMS}", MEMORY_PATTERN, 0, None),
}
"""By the name that a field gives in `Meta(extra={"unit": NAME})`."""


def _seconds(text: str) -> int:
    """The seconds of a text that is in one of the forms of `TIME_PATTERN`."""
    if len(text) > 40:
        raise ValueError(f"{_shown(text)} is too long for a time")
    days, dash, clock = text.rpartition("-")
    if not clock.replace(":", "").isdigit():
        parts = _PART.findall(clock.lower().replace("min", "m"))
        total = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    else:
        numbers = [int(number) for number in clock.split(":")]
        # Behind days the first number is hours; without days one or two numbers begin with minutes.
        units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
        total = int(days or 0) * 86_400 + sum(number * unit for number, unit in zip(numbers, units, strict=False))
    if total > _MAX_S:
        raise ValueError(f"{_shown(text)} is longer than {_MAX_S // 86_400:,} days")
    return total


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
