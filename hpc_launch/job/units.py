"""Times and memory sizes in Slurm's formats and in common short forms, and counts with their noun.

Times are whole seconds, memory sizes whole MiB. Parsers raise ValueError with a complete message.
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
"""Accepted formats, as regular expressions that are valid in Python and JSON Schema (ECMA 262)."""

TIME_FORMS = "02:00:00, 1-12:00:00, 90m or 1d12h"
DURATION_FORMS = "90s, 5m, 2h or 00:05:00"
MEMORY_FORMS = "64G, 1.5T or 512M"

_MAX_S = 10_000 * 86_400  # Slurm keeps limits as 32-bit minutes; nobody requests 27 years on purpose
_MAX_MIB = 2**44  # 16 EiB: Slurm keeps MiB in 64 bits and uses the upper bits as flags
_TIME_PART = re.compile(r"([0-9]+)([dhms])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_KIBIBYTES = {"k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}
_UNLIMITED = ("infinite", "unlimited", "-1")


def parse_time(value: str | int) -> int:
    """Parse a time limit into seconds: a format of sbatch(1) `--time`, or days, hours, minutes and seconds by letter.

    A bare number is minutes, and `12:30` is minutes and seconds, as in Slurm. Zero and `infinite` are rejected: Slurm
    treats both as no limit, which is hardly ever intended. A part may exceed the next unit (`48:00:00`, `0-36`), as in
    Slurm.
    """
    text = str(value).strip()
    if text.lower() in _UNLIMITED:
        raise ValueError(f"{text!r} means no limit; give a limit such as {TIME_FORMS}")
    if not re.match(TIME_PATTERN, text):
        raise ValueError(f"{_quoted(text)} is not a valid time; write it as {TIME_FORMS}")
    seconds = _seconds(text)
    if seconds == 0:
        raise ValueError(f"{text!r} means no limit to Slurm; give a limit such as {TIME_FORMS}")
    return seconds


def parse_duration(value: str | int) -> int:
    """Parse a duration that Slurm does not read into seconds: the same formats with a unit or a colon, and a bare 0.

    Any other bare number is rejected, because seconds and minutes would be equally plausible.
    """
    text = str(value).strip()
    if re.match(r"^[0-9]+$", text) and int(text[:20]) != 0:
        raise ValueError(f"{_quoted(text)} has no unit; write it as {DURATION_FORMS}")
    if not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{_quoted(text)} is not a valid duration; write it as {DURATION_FORMS}")
    return _seconds(text)


def format_time(seconds: int) -> str:
    """Format seconds as `HH:MM:SS`, with `D-` in front from one day on: valid for sbatch, and squeue's format."""
    if seconds < 0:
        raise ValueError(f"a time cannot be negative: {seconds} s")
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def parse_memory(value: str | int) -> int:
    """Parse `64G`, `64GB`, `64GiB`, `1.5T` or `512M` into MiB; a bare number is MiB, 0 stays 0 (all of a node's memory
    in Slurm).

    All units are powers of 1024, as in sbatch(1) `--mem`, even `GB`. Fractions of a MiB are rounded up, so that a job
    never gets less than requested.
    """
    text = str(value).strip()
    if not re.match(MEMORY_PATTERN, text) or len(text) > 40:
        raise ValueError(f"{_quoted(text)} is not a valid memory size; write it as {MEMORY_FORMS}")
    number = text.rstrip("kKmMgGtTiIbB ")
    unit = text[len(number) :].strip()[:1].lower() or "m"
    whole, _, fraction = number.partition(".")
    # Integer arithmetic, because 0.1 T has no exact floating-point value.
    scale: int = 1024 * 10 ** len(fraction)
    mebibytes = -(-int(whole + fraction) * _KIBIBYTES[unit] // scale)
    if mebibytes > _MAX_MIB:
        raise ValueError(f"{_quoted(text)} exceeds the memory of any machine")
    return mebibytes


def format_memory(mebibytes: int) -> str:
    """Shortest form that Slurm parses back to the same size: `64G`, `1536M`, `2T`, `0`."""
    if mebibytes < 0:
        raise ValueError(f"a memory size cannot be negative: {mebibytes} MiB")
    if mebibytes == 0:
        return "0"
    for unit, size in (("T", 1024**2), ("G", 1024)):
        if mebibytes % size == 0:
            return f"{mebibytes // size}{unit}"
    return f"{mebibytes}M"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 node`, `3 nodes`; `plural` for nouns that do not take an s, such as `processes`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


class Unit(NamedTuple):
    """How to parse, format and describe the values of a unit."""

    parse: Callable[[str | int], int]
    write: Callable[[int], str]
    description: str
    pattern: str
    """Accepted text, for the JSON schema."""
    minimum: int
    """Smallest accepted bare number."""
    maximum: int | None
    """Largest bare number that the JSON schema accepts."""


UNITS = {
    "time": Unit(parse_time, format_time, f"a time such as {TIME_FORMS}", TIME_PATTERN, 1, None),
    "duration": Unit(parse_duration, format_time, f"a time such as {DURATION_FORMS}", DURATION_PATTERN, 0, 0),
    "memory": Unit(parse_memory, format_memory, f"memory such as {MEMORY_FORMS}", MEMORY_PATTERN, 0, None),
}
"""Units by the name given in `Meta(extra={"unit": NAME})`."""


def _seconds(text: str) -> int:
    """Seconds of text that matches `TIME_PATTERN`."""
    if len(text) > 40:
        raise ValueError(f"{_quoted(text)} is too long to be a time")
    days, dash, clock = text.rpartition("-")
    if not clock.replace(":", "").isdigit():
        parts = _TIME_PART.findall(clock.lower().replace("min", "m"))
        total = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    else:
        numbers = [int(number) for number in clock.split(":")]
        # After days the first number is hours; without days, one or two numbers start with minutes.
        units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
        total = int(days or 0) * 86_400 + sum(number * unit for number, unit in zip(numbers, units, strict=False))
    if total > _MAX_S:
        raise ValueError(f"{_quoted(text)} is longer than {_MAX_S // 86_400:,} days")
    return total


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
