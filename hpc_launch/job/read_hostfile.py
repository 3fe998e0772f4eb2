"""Read a host file in DeepSpeed's format, `HOST slots=N`, and apply DeepSpeed's include and exclude filters.

Stricter than DeepSpeed (launcher/runner.py, 0.19.8), which ignores what follows the slots and passes any word to ssh as
a host name: a host is a plain name or an IPv4 address, never an option of ssh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.hostlist import MAX_HOSTS, MAX_SLOTS, expand

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
        return [], 0, f"expected `NAME slots=N`, not {_quoted(' '.join(words))}"
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
            return {}, f"the filter names {_quoted(name)}, which is not one of the hosts"
        if name in named:
            return {}, f"the filter names `{name}` twice"
        if colon and not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", numbers):
            return {}, f"{_quoted(item)} in the filter is not HOST:SLOT,SLOT"
        devices = tuple(sorted({int(number) for number in numbers.split(",")})) if colon else ()
        if devices and devices[-1] >= slots[name]:
            return {}, f"the filter names slot {devices[-1]} of `{name}`, which has slots 0 to {slots[name] - 1}"
        named[name] = devices
    return named, None


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
