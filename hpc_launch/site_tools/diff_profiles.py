"""Differences between two profiles: by key in their values, and by line in their scripts."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, errors
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.job.merge import Merged
from hpc_launch.job.reader import read
from hpc_launch.site_tools import team_sources
from hpc_launch.site_tools.check_profile import golden_scripts
from hpc_launch.site_tools.list_profiles import profile_file, values_with_origin
from hpc_launch.sites.layers import chain, merge_layers
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.search_path import Team, search_folders

_STRUCTURAL_KEYS = frozenset({"extends", "recorded", "kind", "parameters"})
"""Keys that define how a profile is composed."""


class ProfileChange(Struct, frozen=True):
    """A key with its value and origin on each side. None if a side does not set it."""

    key: str
    old: str | None
    new: str | None
    old_origin: str = ""
    new_origin: str = ""


class Difference(Struct, frozen=True):
    """Differences between two profiles. `scripts` are the lines of a unified diff, by job."""

    profile: str
    changes: list[ProfileChange]
    scripts: dict[str, list[str]]
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The object of `sites diff --json`."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


class Side(Struct, frozen=True):
    """A profile: its values and their origins, and its scripts or the reason why there is none."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    scripts: Mapping[str, str]
    faults: Mapping[str, str]


def compare(one: str, other: str) -> list[Difference]:
    """Compare two profiles by name or file. Raises Refused if one is invalid."""
    files = profile_file(one), profile_file(other)
    sides = [_side(file, search_folders()) for file in files]
    return _non_empty([_difference(f"{one} → {other}", *sides)])


def compare_with_installed(team: Team) -> list[Difference]:
    """Compare a team's pinned profiles with the same profiles on top of what this version of hpc-launch ships."""
    layers = team_sources.current_parent_folders(team.name)
    with team_sources.with_current_parents(team) as folder:
        differences = []
        for profile in team_sources.profiles_in(folder):
            pinned = _side(team.folder / profile.name, layers)
            recorded = team_sources.pinned_scripts(team, profile.stem)
            old = Side(pinned.values, pinned.origins, recorded or pinned.scripts, pinned.faults)
            differences.append(_difference(profile.stem, old, _side(profile, layers, with_overlay=not recorded)))
    return _non_empty(differences)


def compare_revisions(team: Team, revisions: Sequence[str]) -> list[Difference]:
    """Compare a team's pinned profiles with another revision, or two other revisions."""
    if team.commit is None:
        raise UsageError(f"{team.name} is a folder and has no revisions", "compare files by path")
    layers = team_sources.current_parent_folders(team.name)
    with team_sources.at_revision(team, revisions[-1]) as new:
        if len(revisions) == 1:
            return _non_empty(_compare_folders(team.folder, new, layers))
        with team_sources.at_revision(team, revisions[0]) as old:
            return _non_empty(_compare_folders(old, new, layers))


def _non_empty(differences: Iterable[Difference]) -> list[Difference]:
    return [one for one in differences if one.changes or one.scripts or one.note]


def _compare_folders(old: Path, new: Path, layers: list[Path]) -> Iterator[Difference]:
    names = {path.name for folder in (old, new) for path in team_sources.profiles_in(folder)}
    for name in sorted(names):
        before, after = old / name, new / name
        if not os.path.exists(before) or not os.path.exists(after):
            yield Difference(Path(name).stem, [], {}, "added" if os.path.exists(after) else "removed")
            continue
        try:
            yield _difference(Path(name).stem, _side(before, layers), _side(after, layers))
        except Refused as refused:
            yield Difference(Path(name).stem, [], {}, str(refused.findings[0]))


def _side(path: Path, folders: list[Path], *, with_overlay: bool = True) -> Side:
    findings: list[Finding] = []
    layers = chain(path, findings, review=True, folders=folders)
    if not layers or errors(findings):
        raise Refused(findings)
    merged = merge_layers(layers, None, findings)
    origins = {line.key: str(line.origin) for line in values_with_origin(layers, merged)}
    users = config_folder() / "user.yaml"
    golden = (
        []
        if merged.data.get("kind") == "base"
        else golden_scripts(path, (), users if with_overlay and os.path.isfile(users) else None, folders)
    )
    faults = {one.job: str(one.findings[0]) for one in golden if one.script is None}
    return Side(_values(merged), origins, {one.job: one.script for one in golden if one.script is not None}, faults)


def _values(merged: Merged) -> dict[str, Any]:
    """Normalized values of a profile, so that `1h` and `60m` are equal; as written if the types do not match."""
    profile, _ = read(merged, SiteProfile)
    data = merged.data if profile is None else _written_keys(msgspec.to_builtins(profile), merged.data)
    return {key: value for key, value in data.items() if key not in _STRUCTURAL_KEYS}


def _written_keys(typed: Any, written: Any) -> Any:
    """Typed values of the keys that are written."""
    if isinstance(typed, dict) and isinstance(written, dict):
        return {key: _written_keys(value, written[key]) for key, value in typed.items() if key in written}
    if isinstance(typed, list) and isinstance(written, list) and len(typed) == len(written):
        return [_written_keys(*pair) for pair in zip(typed, written, strict=True)]
    return typed


def _difference(name: str, old: Side, new: Side) -> Difference:
    scripts = {}
    for job in dict.fromkeys([*old.scripts, *new.scripts]):
        serialized = _lines(old.scripts.get(job, "")), _lines(new.scripts.get(job, ""))
        lines = difflib.unified_diff(*serialized, n=0, lineterm="")
        changed = [line for line in list(lines)[2:] if not line.startswith("@@")]
        if changed and job in old.scripts and job in new.scripts:
            scripts[job] = changed
        elif changed:
            side, word = (new, "no longer rendered") if job in old.scripts else (old, "not rendered before")
            scripts[job] = [f"{word}: {side.faults.get(job, 'no such job')}"]
    error = next(iter({**new.faults, **old.faults}.values()), "")
    note = f"no script can be rendered: {error}" if error and not old.scripts and not new.scripts else ""
    return Difference(name, list(_changes("", old.values, new.values, old, new)), scripts, note)


def _lines(script: str) -> list[str]:
    """Lines of a script, without the one that names the hpc-launch release."""
    return [line for line in script.splitlines() if not line.startswith("# Written by hpc-launch ")]


def _changes(key: str, old: Any, new: Any, before: Side, after: Side) -> Iterator[ProfileChange]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from _changes(f"{key}.{name}".lstrip("."), old.get(name), new.get(name), before, after)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _items(key, old, new, before, after)
    elif old != new:
        yield ProfileChange(key, _as_text(old), _as_text(new), _origin(key, old, before), _origin(key, new, after))


def _items(key: str, old: list[Any], new: list[Any], before: Side, after: Side) -> Iterator[ProfileChange]:
    """Added and removed items, so that an inserted item does not change all that follow."""
    serialized = [[json.dumps(item, sort_keys=True, default=str) for item in side] for side in (old, new)]
    matcher = difflib.SequenceMatcher(None, serialized[0], serialized[1], autojunk=False)
    for operation, first, last, start, end in matcher.get_opcodes():
        if operation == "equal":
            continue
        for at in range(first, last):
            item_key = f"{key}.{at}"
            yield ProfileChange(item_key, _as_text(old[at]), None, _origin(item_key, old[at], before))
        for at in range(start, end):
            item_key = f"{key}.{at}"
            yield ProfileChange(item_key, None, _as_text(new[at]), "", _origin(item_key, new[at], after))


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _origin(key: str, value: Any, side: Side) -> str:
    if value is None:
        return ""
    prefix = f"{key}."
    return side.origins.get(key) or next(
        (text for origin_key, text in side.origins.items() if origin_key.startswith(prefix)), ""
    )
