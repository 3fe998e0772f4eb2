"""List the profiles on the search path, show one with the origin of every value, and compare two by key and script."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import config_folder
from hpc_launch.base.findings import Finding, errors
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.job.merge import Merged
from hpc_launch.job.yaml_source import read_document
from hpc_launch.prepare.explain import ExplainedValue, values
from hpc_launch.site_tools.check_profile import golden_scripts
from hpc_launch.site_tools.team_sources import at_revision, profiles_in
from hpc_launch.sites.layers import Read, SiteLayer, chain, merge_layers
from hpc_launch.sites.provenance import provenance, third_party_note
from hpc_launch.sites.read_profile import provenance_of, recorded
from hpc_launch.sites.search_path import Team, find_profile_or_base, is_file_name, profile_files, search_folders

BROKEN = "broken"
Basis = Literal["tried", "centre", "others"]
"""`tried` on the system, from the pages of the `centre` or vendor, or from the scripts of `others`."""


class ProfileSummary(Struct, frozen=True):
    """A row of `sites list`, and an object of its `--json`. `status` is `broken` if the file is unreadable."""

    name: str
    kind: str
    title: str
    grade: str | None
    as_of: str | None
    status: str
    layer: str
    basis: str | None
    """How far it can be trusted; see `basis()`."""


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
    read = cache(read_document)  # most extend the same few
    for file in profile_files(bases=bases):
        key = (file.path.stem, file.is_base)
        if key not in summaries:
            summaries[key] = _summary(file.path, file.layer, read)
    selected = [item for item in summaries.values() if bases or item.kind != "base"]
    return sorted(selected, key=lambda item: (item.kind == "base", item.name))


def _summary(path: Path, layer: str, read: Read) -> ProfileSummary:
    document, _ = read(path)
    data = document.data if document is not None else {}

    def text(key: str) -> str | None:
        value = data.get(key)
        return value if isinstance(value, str) else None

    kind = text("kind") or "system"
    status = BROKEN if document is None else text("status") or ("" if kind == "base" else "draft")
    trust = basis([one.document for one in chain(path, [], read=read)])
    return ProfileSummary(path.stem, kind, text("title") or "", text("grade"), text("as_of"), status, layer, trust)


REQUEST = frozenset({"account", "node_classes", "queues", "sbatch", "stacks", "launch", "fabric", "env", "prelude"})
"""Keys that a job's request and environment are made of."""


def basis(documents: Sequence[Document]) -> Basis | None:
    """What the request of a profile rests on, by its status and the sources of all its files, the profile last.

    The weakest source decides: `others` if any of these facts has the grade C. None if no file gives a grade.
    """
    if documents and documents[-1].data.get("status") == "verified":
        return "tried"
    grades: set[str | None] = set()
    for document in documents:
        sources = provenance(document)
        keys = [path for path in sources.groups if path and path[0] in REQUEST]
        grades |= {sources.fact(path).grade for path in [*keys, *((key,) for key in REQUEST & document.data.keys())]}
    return "others" if "C" in grades else "centre" if grades & {"A", "B"} else None


def profile_details(name: str) -> ProfileDetails:
    """A profile with all its layers; a template keeps its parameters. Raises Refused if it is unreadable."""
    path = find_profile_or_base(name)
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
        fact = sources[place.file].fact(path) if place is not None and place.file in sources else None
        lines.append((path, replace(line, origin=replace(line.origin, fact=third_party_note(fact)))))
    return lines


_STRUCTURAL_KEYS = frozenset({"extends", "recorded", "kind", "parameters"})
"""Keys that define how a profile is composed."""


class ProfileChange(Struct, frozen=True):
    """A value and its origin on each side. None if a side does not set it. The key of an item leaves out its place in
    the list, which changes with what is before it."""

    key: str
    old: str | None
    new: str | None
    old_origin: str = ""
    new_origin: str = ""


class Difference(Struct, frozen=True):
    """An object of `sites diff --json`. `scripts` are the lines of a unified diff, by job."""

    profile: str
    changes: list[ProfileChange]
    scripts: dict[str, list[str]]
    note: str = ""


class Side(Struct, frozen=True):
    """A profile: its values with their origins by key, and its scripts or the reason why there is none."""

    values: Mapping[str, Sequence[tuple[str, str]]]
    scripts: Mapping[str, str]
    faults: Mapping[str, str]


def compare(one: str, other: str) -> list[Difference]:
    """Compare two profiles by name or file. Raises Refused if one is invalid."""
    old, new = (_side(find_profile_or_base(name), search_folders()) for name in (one, other))
    return _non_empty([_difference(f"{one} → {other}", old, new)])


def compare_revisions(team: Team, revisions: Sequence[str]) -> list[Difference]:
    """Compare a team's profiles with those of another revision, by default what an update would copy; or two others."""
    if team.commit is None:
        raise UsageError(f"{team.name} is a folder and has no revisions", "compare files by path")
    layers = [folder for folder in search_folders() if folder != team.folder]
    with ExitStack() as stack:
        wanted = revisions or [team.revision or team.commit]
        folders = [stack.enter_context(at_revision(team.url, revision))[1] for revision in wanted]
        old, new = [team.folder, *folders][-2:]
        names = sorted({path.name for folder in (old, new) for path in profiles_in(folder)})
        return _non_empty([_compare_files(old / name, new / name, layers) for name in names])


def _non_empty(differences: Sequence[Difference]) -> list[Difference]:
    return [one for one in differences if one.changes or one.scripts or one.note]


def _compare_files(old: Path, new: Path, layers: list[Path]) -> Difference:
    if not os.path.exists(old) or not os.path.exists(new):
        return Difference(old.stem, [], {}, "added" if os.path.exists(new) else "removed")
    try:
        return _difference(old.stem, _side(old, layers), _side(new, layers))
    except Refused as refused:
        return Difference(old.stem, [], {}, str(refused.findings[0]))


def _side(path: Path, folders: list[Path]) -> Side:
    findings: list[Finding] = []
    layers = chain(path, findings, review=True, folders=folders)
    if not layers or errors(findings):
        raise Refused(findings)
    merged = merge_layers(layers, None, findings)
    values: dict[str, list[tuple[str, str]]] = {}
    for keys, line in values_with_origin(layers, merged):
        if keys[0] not in _STRUCTURAL_KEYS:
            key = ".".join(part for part in keys if isinstance(part, str))
            values.setdefault(key, []).append((line.value, str(line.origin)))
    users = config_folder() / "user.yaml"
    overlay = users if os.path.isfile(users) else None
    golden = [] if merged.data.get("kind") == "base" else golden_scripts(path, (), overlay, folders)
    faults = {one.job: str(one.findings[0]) for one in golden if one.script is None}
    return Side(values, {one.job: one.script for one in golden if one.script is not None}, faults)


def _difference(name: str, old: Side, new: Side) -> Difference:
    scripts = {}
    for job in dict.fromkeys([*old.scripts, *new.scripts]):
        before, after = (side.scripts.get(job, "").splitlines() for side in (old, new))
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))
        changed = [line for line in lines[2:] if not line.startswith("@@")]
        if changed and job in old.scripts and job in new.scripts:
            scripts[job] = changed
        elif changed:
            side, word = (new, "no longer rendered") if job in old.scripts else (old, "not rendered before")
            scripts[job] = [f"{word}: {side.faults.get(job, 'no such job')}"]
    error = next(iter({**new.faults, **old.faults}.values()), "")
    note = f"no script can be rendered: {error}" if error and not old.scripts and not new.scripts else ""
    return Difference(name, list(_changes(old, new)), scripts, note)


def _changes(old: Side, new: Side) -> Iterator[ProfileChange]:
    for key in dict.fromkeys([*old.values, *new.values]):
        before, after = dict(old.values.get(key, ())), dict(new.values.get(key, ()))
        removed = [(value, origin) for value, origin in before.items() if value not in after]
        added = [(value, origin) for value, origin in after.items() if value not in before]
        for (was, was_at), (now, now_at) in zip_longest(removed, added, fillvalue=(None, "")):
            yield ProfileChange(key, was, now, was_at or "", now_at or "")
