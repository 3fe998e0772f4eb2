"""The profiles on the search path: all of them in short, and one with every value and its origin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, Place
from hpc_launch.drive.explain import Explained, values
from hpc_launch.sites.layers import BASES, SiteLayer, chain, merge_layers
from hpc_launch.sites.provenance import provenance
from hpc_launch.sites.read_profile import recorded
from hpc_launch.sites.search_path import ENDING, find_profile, is_file_name, search_path
from hpc_launch.spec.merge import Merged
from hpc_launch.spec.yaml_source import read_document

BROKEN = "broken"


class Listed(Struct, frozen=True):
    """A profile as the list has it; `status` is `broken` where its file cannot be read."""

    name: str
    kind: str
    title: str
    grade: str | None
    as_of: str | None
    status: str
    layer: str

    def as_json(self) -> dict[str, Any]:
        """The object of `sites list --json`."""
        return {key: getattr(self, key) for key in self.__struct_fields__}


class Shown(Struct, frozen=True):
    """A profile with all it extends. `findings` are its faults; it is shown for all that."""

    name: str
    merged: Merged
    lines: list[Explained]
    findings: list[Finding]

    @property
    def text(self) -> str:
        """The same as one file that extends nothing."""
        lines = recorded(self.merged).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(("recorded:", "# All layers")))


def listed(*, bases: bool) -> list[Listed]:
    """The profiles that a name stands for, systems and templates by name, then bases."""
    found: dict[tuple[str, bool], Listed] = {}
    for layer, folder in search_path():
        for path, is_base in _files(folder):
            key = (path.stem, is_base)
            if key not in found and (bases or not is_base):
                found[key] = _listed(path, layer)
    kept = [one for one in found.values() if bases or one.kind != "base"]
    return sorted(kept, key=lambda one: (one.kind == "base", one.name))


def _files(folder: Path) -> Iterator[tuple[Path, bool]]:
    for place, is_base in ((folder, False), (folder / BASES, True)):
        try:
            yield from ((path, is_base) for path in sorted(place.iterdir()) if path.name.endswith(ENDING))
        except OSError:
            continue


def _listed(path: Path, layer: str) -> Listed:
    document, _ = read_document(path)
    data = document.data if document is not None else {}

    def text(key: str) -> str | None:
        value = data.get(key)
        return value if isinstance(value, str) else None

    kind = text("kind") or "system"
    status = BROKEN if document is None else text("status") or ("" if kind == "base" else "draft")
    return Listed(path.stem, kind, text("title") or "", text("grade"), text("as_of"), status, layer)


def profile_file(name: str) -> Path:
    """The file of a profile, a base's too. Raises Refused where there is none."""
    try:
        return find_profile(name, Place("NAME"))
    except Refused:
        if is_file_name(name):
            raise
        for _, folder in search_path():
            path = folder / BASES / f"{name}{ENDING}"
            if os.path.isfile(path):  # Path.is_file raises for a name that is too long
                return path
        raise


def shown(name: str) -> Shown:
    """A profile with all its layers; a template keeps its parameters. Raises Refused for one that cannot be read."""
    path = profile_file(name)
    findings: list[Finding] = []
    layers = chain(path, findings, own=is_file_name(name))
    if not layers or layers[-1].path != path:
        raise Refused(findings)
    merged = merge_layers(layers, None, findings)
    return Shown(path.stem, merged, explained(layers, merged), findings)


def explained(layers: list[SiteLayer], merged: Merged) -> list[Explained]:
    """Each value with its file and line, and what to know of its source."""
    known = {place.file: provenance(one.document) for one in layers if (place := one.document.places.get(()))}
    lines = []
    for path, line in values("site", merged):
        place = line.origin.place
        fact = known[place.file].warning(path) if place is not None and place.file in known else ""
        lines.append(replace(line, origin=replace(line.origin, fact=fact)))
    return lines
