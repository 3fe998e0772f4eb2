"""Expand and compress Slurm host lists such as `n[1-4,07-09],login1`, without calling scontrol."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

MAX_HOSTS = 100_000
MAX_SLOTS = 1024
"""Processes on one host."""

_HOST_TEXT = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_ITEM = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_SEPARATORS = re.compile(r"[\s,]*")
# Slurm forms ranges only of the digits at the end of a name, up to a limited number of digits.
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)

HostKey = tuple[tuple[str | tuple[int, int], ...], str, int, int]


def expand(text: str) -> list[str]:
    """Expand a host list into its names, in order and with repetitions, like `scontrol show hostnames`.

    Several brackets in a name, zero-padded numbers (`[08-11]`), and extra spaces or commas between names are read as
    scontrol reads them. Raises ValueError for an invalid list, or for more than MAX_HOSTS names.
    """
    hosts: list[str] = []
    at = _match_end(_SEPARATORS, text, 0)
    while at < len(text):
        end = _match_end(_ITEM, text, at)
        if end == at or (end < len(text) and text[end] not in ", \t\r\n"):
            raise ValueError(f"unbalanced brackets in the host list {_quoted(text)}")
        hosts.extend(_expand_item(text[at:end], MAX_HOSTS - len(hosts)))
        at = _match_end(_SEPARATORS, text, end)
    return hosts


def names_or_text(text: str | None) -> tuple[str, ...]:
    """`expand` for a list from a record: an invalid list is kept as one name. Never raises."""
    try:
        return tuple(expand(text or ""))
    except ValueError:
        return ((text or "").strip(),)


def compress(hosts: Iterable[str]) -> str:
    """Compress host names into a sorted host list without duplicates, with ranges for trailing numbers.

    `n01` and `n1` stay separate. Raises ValueError for an invalid host name.
    """
    groups: dict[str, list[str]] = {}
    for host in sorted(set(hosts), key=host_key):
        if not host or not _HOST_TEXT.fullmatch(host):
            raise ValueError(f"{_quoted(host)} is not a valid host name")
        prefix, digits = _split(host)
        groups.setdefault(prefix, []).append(digits)
    return ",".join(_bracketed(prefix, numbers) for prefix, numbers in groups.items())


def host_key(host: str) -> HostKey:
    """Sort key that orders host names by their numbers: n2 before n10, and n1 before n01."""
    prefix, digits = _split(host)
    parts = tuple(
        (int(part), len(part)) if at % 2 else part for at, part in enumerate(re.split(r"([0-9]{1,18})", prefix))
    )
    return parts, prefix, int(digits or -1), len(digits)


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _split(host: str) -> tuple[str, str]:
    match = _TRAILING_NUMBER.fullmatch(host)
    return (match.group(1), match.group(2)) if match else (host, "")


def _expand_item(item: str, limit: int) -> list[str]:
    """Expand one item such as `rack[1-2]n[01-03]` into at most `limit` names."""
    choices: list[list[str]] = []
    total = 1
    for at, part in enumerate(re.split(r"\[([^\]]*)\]", item)):
        numbers = _expand_ranges(part, item) if at % 2 else [part]
        if at % 2 == 0 and not _HOST_TEXT.fullmatch(part):
            raise ValueError(
                f"{_quoted(item)} in the host list contains a character that is not allowed in a host name"
            )
        total *= len(numbers)
        if total > limit:
            raise ValueError(f"the host list expands to more than {MAX_HOSTS:,} names")
        choices.append(numbers)
    return ["".join(parts) for parts in itertools.product(*choices)]


def _expand_ranges(ranges: str, item: str) -> list[str]:
    """Expand `1-4,07-09`. All numbers of a range are padded to the width of the first one."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} in {_quoted(item)} is not a number or a range of numbers")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise ValueError(f"the range {part!r} in {_quoted(item)} ends before it starts")
        if len(numbers) + int(last) - int(first) >= MAX_HOSTS:
            raise ValueError(f"the host list expands to more than {MAX_HOSTS:,} names")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def _bracketed(prefix: str, numbers: list[str]) -> str:
    """One item for all sorted numbers that follow a prefix."""
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


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
