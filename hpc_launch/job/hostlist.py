"""Slurm's host lists, and host files in DeepSpeed's format, `HOST slots=N` and with its filters.

Stricter than DeepSpeed (launcher/runner.py, 0.19.8), which ignores what follows the slots and passes any word to ssh as
a host name: a host is a plain name or an IPv4 address, never an option of ssh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product

from msgspec import Struct

from hpc_launch.base.findings import Finding, FindingCode, Place

MAX_HOSTS = 100_000
MAX_SLOTS = 1024
"""Processes on one host."""
LONGEST_NAME = 253
"""Characters of a host name (RFC 1035)."""

_HOST_TEXT = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_ITEM = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
# Slurm forms ranges only of the digits at the end of a name, up to a limited number of digits.
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]{0,9})", re.DOTALL)
_SLOTS = re.compile(r"slots=([0-9]{1,6})\Z")
_OTHER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*=[A-Za-z0-9._-]+\Z")
"""Further words of a line, such as FlagScale's `type=A800`."""
_LINE_HINT = "write one line per host: `NAME slots=N`"


def expand(text: str) -> list[str]:
    """Expand a host list into its names, in order and with repetitions, like `scontrol show hostnames`.

    Several brackets in a name, zero-padded numbers (`[08-11]`), and extra spaces or commas between names are read as
    scontrol reads them. Raises ValueError for an invalid list, or for more than MAX_HOSTS names.
    """
    return [host for host, _ in expand_slots(text, 0)]


def expand_slots(text: str, default: int) -> list[tuple[str, int]]:
    """Expand a host list whose items may end with their slots, such as `n[1-2]:8,n3:4`. Raises ValueError."""
    hosts: list[tuple[str, int]] = []
    if re.search(r"[\[\]]", _ITEM.sub("", text)):
        raise ValueError(f"unbalanced brackets in the host list {_quoted(text)}")
    for item in _ITEM.findall(text):
        named, colon, slots = item.partition(":") if default else (item, "", "")
        if colon and not (re.fullmatch("[0-9]{1,6}", slots) and 1 <= int(slots) <= MAX_SLOTS):
            raise ValueError(f"{_quoted(item)} in the host list does not end with 1 to {MAX_SLOTS} slots")
        hosts += [(name, int(slots or default)) for name in _expand_item(named, MAX_HOSTS - len(hosts))]
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
        match = _TRAILING_NUMBER.fullmatch(host)
        if not host or not _HOST_TEXT.fullmatch(host) or match is None:
            raise ValueError(f"{_quoted(host)} is not a valid host name")
        groups.setdefault(match[1], []).append(match[2])
    return ",".join(_bracketed(prefix, numbers) for prefix, numbers in groups.items())


def host_key(host: str) -> tuple[object, ...]:
    """Sort key that orders host names by their numbers: n2 before n10, and n1 before n01."""
    match = _TRAILING_NUMBER.fullmatch(host)
    prefix, digits = (match[1], match[2]) if match else (host, "")
    parts = re.split(r"([0-9]{1,18})", prefix)
    sizes = tuple((int(part), len(part)) if at % 2 else part for at, part in enumerate(parts))
    return sizes, prefix, int(digits or -1), len(digits)


def _expand_item(item: str, limit: int) -> list[str]:
    """Expand one item such as `rack[1-2]n[01-03]` into at most `limit` names."""
    choices: list[list[str]] = []
    total = 1
    for at, part in enumerate(re.split(r"\[([^\]]*)\]", item)):
        if at % 2 == 0 and not _HOST_TEXT.fullmatch(part):
            message = f"{_quoted(item)} in the host list contains a character that is not allowed in a host name"
            raise ValueError(message)
        choices.append(_expand_ranges(part, item) if at % 2 else [part])
        total *= len(choices[-1])
        if total > limit:
            raise ValueError(f"the host list expands to more than {MAX_HOSTS:,} names")
    return ["".join(parts) for parts in product(*choices)]


def _expand_ranges(ranges: str, item: str) -> list[str]:
    """Expand `1-4,07-09`. All numbers of a range are padded to the width of the first one."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} in {_quoted(item)} is not a number or a range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the range {part!r} in {_quoted(item)} ends before it starts")
        if len(numbers) + last - first >= MAX_HOSTS:
            raise ValueError(f"the host list expands to more than {MAX_HOSTS:,} names")
        numbers.extend(str(number).zfill(len(match[1])) for number in range(first, last + 1))
    return numbers


def _bracketed(prefix: str, numbers: list[str]) -> str:
    """One item for all sorted numbers that follow a prefix."""
    runs: list[list[str]] = []
    for digits in filter(None, numbers):
        if runs and digits == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1][1:] = [digits]
        else:
            runs.append([digits])
    ranges = ["-".join(run) for run in runs]
    plain = [prefix] if "" in numbers else []
    if len(ranges) == 1 and "-" not in ranges[0]:
        plain.append(prefix + ranges[0])
    elif ranges:
        plain.append(f"{prefix}[{','.join(ranges)}]")
    return ",".join(plain)


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


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
    hosts: dict[str, tuple[int, int]] = {}
    findings: list[Finding] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        try:
            for host in _parse_line(words, slots_required=slots_required) if words else ():
                if host.name in hosts:
                    raise ValueError(f"`{host.name}` is already listed in line {hosts[host.name][1]}")
                hosts[host.name] = host.slots, number
            if len(hosts) > MAX_HOSTS:
                raise ValueError(f"more than {MAX_HOSTS:,} hosts")
        except ValueError as error:
            findings.append(Finding(FindingCode.INVALID_HOSTFILE, str(error), Place(file, number), _LINE_HINT))
        if len(findings) > 20 or len(hosts) > MAX_HOSTS:
            break
    if not hosts and not findings:
        findings.append(Finding(FindingCode.INVALID_HOSTFILE, "the file lists no hosts", Place(file), _LINE_HINT))
    return tuple(SlotHost(name, slots) for name, (slots, _) in hosts.items()), findings


def why_not_a_host(name: str) -> str | None:
    """Why a text is not a host name that ssh may get; None if it is one."""
    if name.startswith("-"):
        return f"{_quoted(name)} is an option of ssh, not a host name"
    if not name or len(name) > LONGEST_NAME or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        return f"{_quoted(name)} is not a valid host name"
    return None


def filter_hosts(
    hosts: Sequence[SlotHost], include: str | None = None, exclude: str | None = None
) -> tuple[tuple[SlotHost, ...], str | None]:
    """The hosts that the filters leave, and what is wrong with a filter, if anything.

    `gpu1@gpu2:0,2` names all slots of gpu1 and two of gpu2. The order of the hosts is kept.
    """
    if include and exclude:
        return tuple(hosts), "`include` and `exclude` are both set"
    try:
        named = _parse_filter(include or exclude or "", {host.name: host.slots for host in hosts})
    except ValueError as error:
        return tuple(hosts), str(error)
    left: list[SlotHost] = []
    for host in hosts:
        chosen = named.get(host.name, set())
        devices = chosen if include else set(range(host.slots)) - chosen
        if devices:
            left.append(SlotHost(host.name, len(devices), () if len(devices) == host.slots else tuple(sorted(devices))))
    return tuple(left), None if left else "the filter leaves no host"


def _parse_line(words: list[str], *, slots_required: bool) -> list[SlotHost]:
    """The hosts of a line. Raises ValueError."""
    name, *rest = words
    if ("[" not in name or name.startswith("-")) and (message := why_not_a_host(name)):
        raise ValueError(message)
    slots = [match[1] for word in rest if (match := _SLOTS.match(word))]
    given = slots_required or any(word.startswith("slots=") for word in rest)
    if not all(map(_OTHER.match, rest)) or (given and len(slots) != 1):
        raise ValueError(f"expected `NAME slots=N`, not {_quoted(' '.join(words))}")
    count = int(slots[0]) if given else 0
    if given and not 1 <= count <= MAX_SLOTS:
        raise ValueError(f"{count} slots: a host has 1 to {MAX_SLOTS}")
    names = expand(name)
    if message := next(filter(None, map(why_not_a_host, names)), None):
        raise ValueError(message)
    return [SlotHost(host, count) for host in names]


def _parse_filter(text: str, slots: dict[str, int]) -> dict[str, set[int]]:
    """The named hosts with the named devices. Raises ValueError."""
    named: dict[str, set[int]] = {}
    for item in text.split("@") if text else []:
        name, colon, numbers = item.strip().partition(":")
        if name not in slots or name in named:
            why = "twice" if name in named else "which is not one of the hosts"
            raise ValueError(f"the filter names {_quoted(name)}, {why}")
        if colon and not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", numbers):
            raise ValueError(f"{_quoted(item)} in the filter is not HOST:SLOT,SLOT")
        named[name] = {int(number) for number in numbers.split(",")} if colon else set(range(slots[name]))
        if max(named[name]) >= slots[name]:
            raise ValueError(f"the filter names slots of `{name}`, which has slots 0 to {slots[name] - 1}")
    return named
