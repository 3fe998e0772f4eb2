"""Slurm's host lists: `n[1-4,07-09],login1` and the names behind it, without asking scontrol."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

MAX_HOSTS = 100_000

_TEXT = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_ITEM = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_SEPARATORS = re.compile(r"[\s,]*")
# Slurm counts in the digits at the end of a name alone, and not in arbitrarily many of them.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)

HostKey = tuple[tuple[str | tuple[int, int], ...], str, int, int]


def expand(text: str) -> list[str]:
    """The names that a host list stands for, in its order and with its repetitions, as `scontrol show hostnames`.

    Several brackets in a name, numbers of fixed width (`[08-11]`), and spaces or empty places between names are
    read as scontrol reads them. Raises ValueError for what is malformed, or for more than MAX_HOSTS names.
    """
    hosts: list[str] = []
    at = _end_of(_SEPARATORS, text, 0)
    while at < len(text):
        end = _end_of(_ITEM, text, at)
        if end == at or (end < len(text) and text[end] not in ", \t\r\n"):
            raise ValueError(f"the brackets of the host list {_shown(text)} do not match")
        hosts.extend(_names(text[at:end], MAX_HOSTS - len(hosts)))
        at = _end_of(_SEPARATORS, text, end)
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """The usual short form of names, each once: sorted as `host_key` says, numbers at the end put together.

    `n01` and `n1` stay apart. Raises ValueError for a name that is none.
    """
    groups: dict[str, list[str]] = {}
    for host in sorted(set(hosts), key=host_key):
        if not host or not _TEXT.fullmatch(host):
            raise ValueError(f"{_shown(host)} is no host name")
        prefix, digits = _split(host)
        groups.setdefault(prefix, []).append(digits)
    return ",".join(_folded(prefix, numbers) for prefix, numbers in groups.items())


def host_key(host: str) -> HostKey:
    """A key that sorts host names by their numbers: n2 before n10, and n1 before n01."""
    prefix, digits = _split(host)
    parts = tuple(
        (int(part), len(part)) if at % 2 else part for at, part in enumerate(re.split(r"([0-9]{1,18})", prefix))
    )
    return parts, prefix, int(digits or -1), len(digits)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _split(host: str) -> tuple[str, str]:
    match = _NUMBERED.fullmatch(host)
    return (match.group(1), match.group(2)) if match else (host, "")


def _names(item: str, room: int) -> list[str]:
    """The names of one item such as `rack[1-2]n[01-03]`, at most `room`."""
    choices: list[list[str]] = []
    total = 1
    for at, part in enumerate(re.split(r"\[([^\]]*)\]", item)):
        numbers = _numbers(part, item) if at % 2 else [part]
        if at % 2 == 0 and not _TEXT.fullmatch(part):
            raise ValueError(f"{_shown(item)} in the host list holds what no host name can")
        total *= len(numbers)
        if total > room:
            raise ValueError(f"the host list stands for more than {MAX_HOSTS:,} names")
        choices.append(numbers)
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(ranges: str, item: str) -> list[str]:
    """The numbers of `1-4,07-09` in writing; a range has the width of its first number."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} in {_shown(item)} is no number and no range of numbers")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise ValueError(f"the range {part!r} in {_shown(item)} runs backwards")
        if len(numbers) + int(last) - int(first) >= MAX_HOSTS:
            raise ValueError(f"the host list stands for more than {MAX_HOSTS:,} names")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def _folded(prefix: str, numbers: list[str]) -> str:
    """One item for all sorted numbers behind a prefix."""
    runs: list[tuple[str, str]] = []
    for digits in numbers:
        if runs and digits and runs[-1][0]:
            first, last = runs[-1]
            if digits == str(int(last) + 1).zfill(len(first)):
                runs[-1] = (first, digits)
                continue
        runs.append((digits, digits))
    plain = [prefix for first, _ in runs if not first]
    ranges = [first if first == last else f"{first}-{last}" for first, last in runs if first]
    if len(ranges) == 1 and "-" not in ranges[0]:
        plain.append(prefix + ranges[0])
    elif ranges:
        plain.append(f"{prefix}[{','.join(ranges)}]")
    return ",".join(plain)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
