"""List the profiles on the search path, and show one with the origin of every value."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import KeyPath
from hpc_launch.job.merge import Merged
from hpc_launch.job.yaml_source import read_document
from hpc_launch.prepare.explain import ExplainedValue, values
from hpc_launch.sites.layers import SiteLayer, chain, merge_layers
from hpc_launch.sites.read_profile import provenance_of, recorded
from hpc_launch.sites.search_path import BASES, ENDING, find_profile, is_file_name, profile_files, search_path

BROKEN = "broken"


class ProfileSummary(Struct, frozen=True):
    """A row of `sites list`, and an object of its `--json`. `status` is `broken` if the file is unreadable."""

    name: str
    kind: str
    title: str
    grade: str | None
    as_of: str | None
    status: str
    layer: str


class ProfileDetails(Struct, frozen=True):
    """A profile with everything it extends. It is shown even if `findings` contains errors."""

    name: str
    merged: Merged
    lines: list[ExplainedValue]
    findings: list[Finding]

    @property
    def text(self) -> str:
        """The profile as one file that extends nothing."""
        lines = recorded(self.merged).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(("recorded:", "# All layers")))


def profile_summaries(*, bases: bool) -> list[ProfileSummary]:
    """The first profile of each name: systems and templates by name, then bases."""
    summaries: dict[tuple[str, bool], ProfileSummary] = {}
    for file in profile_files(bases=bases):
        key = (file.path.stem, file.is_base)
        if key not in summaries:
            summaries[key] = _summary(file.path, file.layer)
    selected = [item for item in summaries.values() if bases or item.kind != "base"]
    return sorted(selected, key=lambda item: (item.kind == "base", item.name))


def _summary(path: Path, layer: str) -> ProfileSummary:
    document, _ = read_document(path)
    data = document.data if document is not None else {}

    def text(key: str) -> str | None:
        value = data.get(key)
        return value if isinstance(value, str) else None

    kind = text("kind") or "system"
    status = BROKEN if document is None else text("status") or ("" if kind == "base" else "draft")
    return ProfileSummary(path.stem, kind, text("title") or "", text("grade"), text("as_of"), status, layer)


def profile_file(name: str) -> Path:
    """File of a profile or base. Raises Refused if there is none."""
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


def profile_details(name: str) -> ProfileDetails:
    """A profile with all its layers; a template keeps its parameters. Raises Refused if it is unreadable."""
    path = profile_file(name)
    findings: list[Finding] = []
    layers = chain(path, findings, own=is_file_name(name))
    if not layers or layers[-1].path != path:
        raise Refused(findings)
    merged = merge_layers(layers, None, findings)
    lines = [line for _, line in values_with_origin(layers, merged)]
    return ProfileDetails(path.stem, merged, lines, findings)


def values_with_origin(layers: list[SiteLayer], merged: Merged) -> list[tuple[KeyPath, ExplainedValue]]:
    """Each value by its keys, with its file and line, and a note on its source."""
    sources = provenance_of(layers)
    lines = []
    for path, line in values("site", merged):
        place = line.origin.place
        fact = sources[place.file].warning(path) if place is not None and place.file in sources else ""
        lines.append((path, replace(line, origin=replace(line.origin, fact=fact))))
    return lines
