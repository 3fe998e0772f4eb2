"""Which site this machine is of: the `detect:` of the profiles on the search path, held against the machine.

The ways to know are tried in an order, and the first in which a profile fits decides: variables that a site sets, full
names of the host, files that are there, and last Slurm's name of the cluster, for which the controller is asked. Where
two profiles fit in the same way, none is taken.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert

from hpc_launch.base.files import read_text
from hpc_launch.sites.detection_rules import Probe
from hpc_launch.sites.search_path import ENDING, search_path
from hpc_launch.spec.yaml_source import MAX_BYTES, parse_document

WAYS = ("variable", "host", "path", "cluster")
"""In the order in which they count."""

_TOP_KEY = re.compile(r"^([A-Za-z_]+):", re.MULTILINE)


class Machine(Struct, frozen=True):
    """What can be asked of this machine."""

    environment: Mapping[str, str]
    hosts: tuple[str, ...]
    exists: Callable[[str], bool]
    cluster: Callable[[], str | None]
    """Slurm's name of the cluster; None where it does not tell."""
    has_slurm: Callable[[], bool]


class SiteMatch(Struct, frozen=True):
    """A profile on the search path, and what it says of how to know its site."""

    name: str
    path: Path
    layer: str
    probes: tuple[Probe, ...]
    fault: str | None = None
    """Why its probes could not be read."""


class Match(Struct, frozen=True):
    """A profile that fits, in which way, and the words for it."""

    name: str
    path: Path
    layer: str
    way: str
    because: str


class Detection(Struct, frozen=True):
    """What came of it. `chosen` is the one profile that fits, or `local` where there is no Slurm at all."""

    chosen: Match | None
    matches: tuple[Match, ...]
    """All that fit in the way that decided; more than one is an ambiguity."""
    unread: tuple[SiteMatch, ...]
    cluster: str | None
    """Slurm's name of the cluster, where it was asked for."""

    @property
    def message(self) -> str:
        """Why no site was taken."""
        if self.matches:
            fit = "; ".join(f"{match.name} ({match.because})" for match in self.matches)
            return f"no site is named, and more than one profile fits this machine: {fit}"
        return "no site is named, and no profile fits this machine"

    @property
    def hint(self) -> str:
        """What to do about it."""
        flag = "`--site NAME`, `site:` in the job file, or HPC_LAUNCH_SITE"
        if self.matches:
            return f"say which one it is: {flag}"
        return f"name one: {flag} (`local` is this machine); `hpc-launch sites learn` makes a profile of this cluster"


def detect(machine: Machine, project: Path | None = None) -> Detection:
    """Try every profile on the search path in each way; `project` is the folder of a job file."""
    known = list(candidates(project))
    unread = tuple(one for one in known if one.fault)
    asked = _Asked(machine)
    for way in WAYS:
        matches = tuple(match for one in known if (match := _first_match(one, way, asked)))
        if matches:
            return Detection(matches[0] if len(matches) == 1 else None, matches, unread, asked.name)
    local = next((one for one in known if one.name == "local"), None)
    if local is not None and not machine.has_slurm():
        chosen = Match("local", local.path, local.layer, "local", "there is no Slurm on this machine")
        return Detection(chosen, (chosen,), unread, asked.name)
    return Detection(None, (), unread, asked.name)


class _Asked:
    """The machine, with its slow answer kept."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name: str | None = None
        self._known = False

    def cluster(self) -> str | None:
        if not self._known:
            self.name, self._known = self.machine.cluster(), True
        return self.name


def _way(probe: Probe) -> str:
    """The strongest thing that a probe asks for; what Slurm must be asked is always late."""
    if probe.cluster is not None:
        return "cluster"
    return "variable" if probe.env else "host" if probe.host is not None else "path"


def _first_match(one: SiteMatch, way: str, asked: _Asked) -> Match | None:
    for probe in one.probes:
        if _way(probe) == way and (reasons := _reasons(probe, asked)):
            return Match(one.name, one.path, one.layer, way, " and ".join(reasons))
    return None


def _reasons(probe: Probe, asked: _Asked) -> list[str]:
    """Why a probe fits, a reason a key; empty unless all of its keys do."""
    machine, reasons = asked.machine, []
    for name, wanted in probe.env.items():
        value = machine.environment.get(name)
        if value is None or not fnmatch.fnmatchcase(value, wanted):
            return []
        reasons.append(f"{name}={value}")
    if probe.host is not None:
        fitting = [host for host in machine.hosts if fnmatch.fnmatchcase(host, probe.host)]
        if not fitting:
            return []
        reasons.append(f"host {fitting[0]}")
    if probe.path is not None:
        if not machine.exists(probe.path):
            return []
        reasons.append(f"{probe.path} is there")
    if probe.cluster is not None:
        if asked.cluster() != probe.cluster:
            return []
        reasons.append(f"Slurm's cluster {probe.cluster}")
    return reasons


def candidates(project: Path | None = None) -> Iterator[SiteMatch]:
    """Each profile on the search path by its name, the nearest of a name first.

    Where it has no `detect:` of its own that of its namesake further down counts: a team's `juwels` over ours.
    """
    found: dict[str, SiteMatch] = {}
    for layer, folder in search_path(project):
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(ENDING))
        except OSError:
            continue
        for file in names:
            name = file.removesuffix(ENDING)
            if name in found and (found[name].probes or found[name].fault):
                continue
            probes, fault = _probes(folder / file)
            nearest = found.get(name)
            path, where = (nearest.path, nearest.layer) if nearest else (folder / file, layer)
            found[name] = SiteMatch(name, path, where, probes, fault)
    yield from found.values()


def _probes(path: Path) -> tuple[tuple[Probe, ...], str | None]:
    """The probes of one file. Only their part is parsed: there may be hundreds of files on a slow disk."""
    try:
        text = read_text(path, longest=MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        return (), str(error)
    if "detect" not in text:
        return (), None
    document, faults = parse_document(_part(text, "detect") or text, str(path))
    if document is None or faults:
        return (), str(faults[0]) if faults else "it is empty"
    data: Any = document.data.get("detect") or []
    try:
        probes = convert(data, list[Probe])
    except ValidationError as error:
        return (), f"{path}: detect: {error}"
    # A probe that asks for nothing would fit everywhere.
    return tuple(probe for probe in probes if probe != Probe()), None


def _part(text: str, key: str) -> str | None:
    """The lines of a top-level key; None where the file is not written in such lines."""
    starts = list(_TOP_KEY.finditer(text))
    for at, match in enumerate(starts):
        if match[1] == key:
            end = starts[at + 1].start() if at + 1 < len(starts) else len(text)
            return text[match.start() : end]
    return None
