"""Slurm's host lists, and host files in DeepSpeed's format, `HOST slots=N` and with its filters.

Stricter than DeepSpeed (launcher/runner.py, 0.19.8), which ignores what follows the slots and passes any word to ssh as
a host name: a host is a plain name or an IPv4 address, never an option of ssh."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place

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


LONGEST_NAME = 253
"""Characters of a host name (RFC 1035)."""

_SLOTS = re.compile(r"slots=([0-9]{1,6})\Z")
_OTHER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*=[A-Za-z0-9._-]+\Z")
"""Further words of a line, such as FlagScale's `type=A800`."""
_SHOWN = 60


class SlotHost(Struct, frozen=True):
    """A host and its slots. `devices` are the chosen ones, by their numbers; empty if the host gives all."""

    name: str
    slots: int
    devices: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} slots={self.slots}"


def read_hostfile(text: str, file: str, *, slots_required: bool = True) -> tuple[tuple[SlotHost, ...], list[Finding]]:
    """The hosts of a file in its order, and a finding for each invalid line. `n[1-4] slots=8` stands for four hosts.

    Unless `slots_required`, a line without slots is a host with 0 slots.
    """
    hosts: dict[str, int] = {}
    lines: dict[str, int] = {}
    findings: list[Finding] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        names, slots, message = _parse_line(words, slots_required=slots_required)
        for name in names:
            if name in hosts:
                message = f"`{name}` is already listed in line {lines[name]}"
                break
            hosts[name], lines[name] = slots, number
        if len(hosts) > MAX_HOSTS:
            message = f"more than {MAX_HOSTS:,} hosts"
        if message is not None:
            hint = "write one line per host: `NAME slots=N`"
            findings.append(Finding(FindingCode.INVALID_HOSTFILE, message, Place(file, number), hint))
        if len(findings) > 20 or len(hosts) > MAX_HOSTS:
            break
    if not hosts and not findings:
        hint = "write one line per host: `NAME slots=N`"
        findings.append(Finding(FindingCode.INVALID_HOSTFILE, "the file lists no hosts", Place(file), hint))
    return tuple(SlotHost(name, slots) for name, slots in hosts.items()), findings


def why_not_a_host(name: str) -> str | None:
    """Why a text is not a host name that ssh may get; None if it is one."""
    if name.startswith("-"):
        return f"{_quoted_host(name)} is an option of ssh, not a host name"
    if not name or len(name) > LONGEST_NAME or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        return f"{_quoted_host(name)} is not a valid host name"
    return None


def filter_hosts(
    hosts: Sequence[SlotHost], include: str | None = None, exclude: str | None = None
) -> tuple[tuple[SlotHost, ...], str | None]:
    """The hosts that the filters leave, and what is wrong with a filter, if anything.

    `gpu1@gpu2:0,2` names all slots of gpu1 and two of gpu2. The order of the hosts is kept.
    """
    if include and exclude:
        return tuple(hosts), "`include` and `exclude` are both set"
    named, message = _parse_filter(include or exclude or "", {host.name: host.slots for host in hosts})
    if message is not None:
        return tuple(hosts), message
    left: list[SlotHost] = []
    for host in hosts:
        chosen = named.get(host.name)
        if include:
            devices = [] if chosen is None else list(chosen) or list(range(host.slots))
        elif chosen is None:
            devices = list(range(host.slots))
        else:
            devices = [device for device in range(host.slots) if chosen and device not in chosen]
        if devices:
            part = () if len(devices) == host.slots else tuple(devices)
            left.append(SlotHost(host.name, len(devices), part))
    return tuple(left), None if left else "the filter leaves no host"


def _parse_line(words: list[str], *, slots_required: bool) -> tuple[list[str], int, str | None]:
    """The hosts of a line and their slots, or what is wrong with it."""
    name, *rest = words
    message = why_not_a_host(name) if "[" not in name or name.startswith("-") else None
    if message is not None:
        return [], 0, message
    slots = [match[1] for word in rest if (match := _SLOTS.match(word))]
    unknown = [word for word in rest if not _OTHER.match(word)]
    omitted = not slots_required and not unknown and not any(word.startswith("slots=") for word in rest)
    if not omitted and (len(slots) != 1 or unknown):
        return [], 0, f"expected `NAME slots=N`, not {_quoted_host(' '.join(words))}"
    count = 0 if omitted else int(slots[0])
    if not omitted and not 1 <= count <= MAX_SLOTS:
        return [], 0, f"{count} slots: a host has 1 to {MAX_SLOTS}"
    try:
        names = expand(name)
    except ValueError as error:
        return [], 0, str(error)
    message = next(filter(None, map(why_not_a_host, names)), None)
    return ([] if message else names), count, message


def _parse_filter(text: str, slots: dict[str, int]) -> tuple[dict[str, tuple[int, ...]], str | None]:
    """The named hosts with the named devices; no devices: all of them."""
    named: dict[str, tuple[int, ...]] = {}
    for item in text.split("@") if text else []:
        name, colon, numbers = item.strip().partition(":")
        if name not in slots:
            return {}, f"the filter names {_quoted_host(name)}, which is not one of the hosts"
        if name in named:
            return {}, f"the filter names `{name}` twice"
        if colon and not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", numbers):
            return {}, f"{_quoted_host(item)} in the filter is not HOST:SLOT,SLOT"
        devices = tuple(sorted({int(number) for number in numbers.split(",")})) if colon else ()
        if devices and devices[-1] >= slots[name]:
            return {}, f"the filter names slot {devices[-1]} of `{name}`, which has slots 0 to {slots[name] - 1}"
        named[name] = devices
    return named, None


def _quoted_host(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
