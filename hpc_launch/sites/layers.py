"""The layers of a site profile: what it extends, itself, and the user's own keys for it; then their merge."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.search_path import ENDING, search_path
from hpc_launch.sites.team_profiles import pinned_below
from hpc_launch.spec.document import Document, KeyPath
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.merge import Layer, Merged, merge
from hpc_launch.spec.merge_operators import parse_operators
from hpc_launch.spec.reader import check
from hpc_launch.spec.short_forms import long_form
from hpc_launch.spec.yaml_source import read_document

BASES = "bases"
"""The folder beside profiles in which what `extends` names is looked for too."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")
OWN = frozenset(
    "name title kind extends status lifecycle grade source as_of facts contact url verified_on verified_by "
    "published unknown recorded".split()
)
"""Keys that say what a profile itself is; one that extends it does not get them. Facts go by the values' own file."""


class SiteLayer(Struct, frozen=True):
    """One file of a profile's chain."""

    path: Path
    document: Document

    @property
    def kind(self) -> str:
        """What the file says it is."""
        return str(self.document.data.get("kind", "system"))

    @property
    def name(self) -> str:
        """What origins call the layer."""
        known = str(self.document.data.get("name", self.path.stem))
        return f"{'base' if self.kind == 'base' else 'site'} {known}"


def chain(
    path: Path, findings: list[Finding], *, own: bool = False, folders: Sequence[Path] | None = None
) -> list[SiteLayer]:
    """All files of a profile, the lowest first: what it extends in order, each with its own parents, then itself.

    One that is reached twice counts once, where it came first. `own`: whether the first file's raw lines count, because
    the user named that very file. `folders`: where parents are looked for, by default the search path. HL307 cycle,
    HL308 unknown, HL309 a path that escapes.
    """
    walk = _Walk(findings, os.path.realpath(path) if own else None, folders)
    walk.enter(path, None, ())
    return list(walk.layers.values())


class _Walk:
    """The way from a profile to all that it extends."""

    def __init__(self, findings: list[Finding], own: str | None, folders: Sequence[Path] | None) -> None:
        self.findings = findings
        self.own = own
        self.folders = folders
        self.layers: dict[str, SiteLayer] = {}

    def enter(self, path: Path, named_at: Place | None, above: tuple[str, ...]) -> None:
        """Add a file, after what it extends. `above` are the files on the way to it."""
        real = os.path.realpath(path)
        if real in self.layers:
            return
        if real in above:
            way = " → ".join(Path(one).stem for one in (*above[above.index(real) :], real))
            message = f"profiles extend each other in a circle: {way}"
            self.findings.append(Finding(FindingCode.CIRCULAR_EXTENDS, message, named_at, "take one out"))
            return
        document, faults = read_document(path)
        self.findings += faults
        if document is None:
            return
        if real != self.own and "raw" in document.text:
            from hpc_launch.sites.trust import refused

            self.findings += refused(path, document)
        for at, parent in _parents(document):
            found = self.parent(parent, path, document.places.get(at))
            if found is not None:
                self.enter(found, document.places.get(at), (*above, real))
        self.layers[real] = SiteLayer(path, document)

    def parent(self, name: Any, child: Path, place: Place | None) -> Path | None:
        """The file that `name` means in `extends`; None with a finding where it means none."""
        if not isinstance(name, str) or not NAME.match(name):
            message = f"`{name}` is no name of a profile"
            hint = "write a name, or FOLDER/NAME below a folder of the search path"
            self.findings.append(Finding(FindingCode.INVALID_PARENT_NAME, message, place, hint))
            return None
        found = find_parent(name, child, self.folders)
        if found is None:
            hint = f"{name}{ENDING} and {BASES}/{name}{ENDING} are looked for in the folders of the search path"
            self.findings.append(
                Finding(FindingCode.UNKNOWN_PARENT, f"there is no profile `{name}` to extend", place, hint)
            )
        return found


def _parents(document: Document) -> Iterator[tuple[KeyPath, Any]]:
    named = document.data.get("extends")
    if isinstance(named, list):
        yield from ((("extends", at), parent) for at, parent in enumerate(named))
    elif named is not None:
        yield ("extends",), named


def find_parent(name: str, child: Path, folders: Sequence[Path] | None = None) -> Path | None:
    """The file of what `child` extends: in its own folder, then on the search path; by its file name alone.

    A profile's own name means the next one so called, further down the search path. A pinned profile of a team finds
    the copies that were pinned with it before what is there now.
    """
    here = child.parent
    path = [folder for _, folder in search_path()] if folders is None else list(folders)
    kept = pinned_below(child)
    if name != child.stem:
        near = [here, here.parent] if here.name == BASES else [here]
        places = [*near, *kept, *path]
    else:
        places = [*_after(here, kept), *_after(here, path)]
    for folder in places:
        for file in (folder / f"{name}{ENDING}", folder / BASES / f"{name}{ENDING}"):
            if os.path.isfile(file) and os.path.realpath(file) != os.path.realpath(child):
                return file
    return None


def _after(here: Path, folders: list[Path]) -> list[Path]:
    """The folders behind `here`; all of them where it is none of them."""
    real = [os.path.realpath(folder) for folder in folders]
    own = os.path.realpath(here)
    return folders[real.index(own) + 1 :] if own in real else folders


def put_together(layers: list[SiteLayer], user: Document | None, findings: list[Finding]) -> Merged:
    """The values of all layers. A fault is named where it stands, even if a later layer hides it."""
    last = len(layers) - 1
    parts = [_as_layer(layer, own=at == last, findings=findings) for at, layer in enumerate(layers)]
    if user is not None:
        parts.append(_marked("user", user, findings))
    return merge(parts)


def _as_layer(layer: SiteLayer, *, own: bool, findings: list[Finding]) -> Layer:
    part = _marked(layer.name, layer.document, findings)
    if own:
        return part
    data = {key: value for key, value in part.data.items() if key not in OWN}
    return Layer(part.name, data, part.places, part.key_places, part.written, part.operators)


def _marked(name: str, document: Document, findings: list[Finding]) -> Layer:
    """A file as a layer: operators taken off, short forms written out, each value checked."""
    types = job_keys(document.data)
    parsed, faults = parse_operators(document, {(): SiteProfile, **types})
    findings += faults
    open_ = {parsed.places.get(path) for path, text in parsed.written.items() if "${param." in text}
    findings += [fault for fault in check(parsed, SiteProfile) if fault.place not in open_]
    long = long_form(parsed, SiteProfile)
    for path in types:
        long = long_form(long, JobSpec, path=path)
    return Layer(name, long.data, long.places, long.key_places, long.written, parsed.operators)


def job_keys(data: Mapping[str, Any]) -> dict[KeyPath, type[JobSpec]]:
    """Where a profile holds keys of a job file."""
    found: dict[KeyPath, type[JobSpec]] = {}
    if isinstance(data.get("defaults"), dict):
        found["defaults",] = JobSpec
    for table in ("node_classes", "queues"):
        entries = data.get(table)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict) and isinstance(entry.get("defaults"), dict):
                found[table, name, "defaults"] = JobSpec
    return found
