"""What differs between two profiles: key by key in what they mean, and line by line in the scripts they make."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, errors
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.site_tools import team_sources
from hpc_launch.site_tools.golden_jobs import GoldenScript, made_from
from hpc_launch.site_tools.list_profiles import explained, profile_file
from hpc_launch.sites.layers import chain, merge_layers
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.search_path import search_path
from hpc_launch.sites.team_profiles import Team, find_team
from hpc_launch.spec.merge import Merged
from hpc_launch.spec.reader import read

_LEFT_OUT = frozenset({"extends", "recorded", "kind", "parameters"})
"""Keys that tell how a profile is put together."""


class ProfileChange(Struct, frozen=True):
    """A key with its value and origin on each side; None where the side says nothing."""

    key: str
    old: str | None
    new: str | None
    old_origin: str = ""
    new_origin: str = ""


class Difference(Struct, frozen=True):
    """Two profiles, and what differs. `scripts` are the lines of a unified difference, by job."""

    profile: str
    changes: list[ProfileChange]
    scripts: dict[str, list[str]]
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The object of `sites diff --json`."""
        held: dict[str, Any] = msgspec.to_builtins(self)
        return held


class Side(Struct, frozen=True):
    """A profile that was read: its values, where each is from, and its scripts or why there is none."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    scripts: Mapping[str, str]
    faults: Mapping[str, str]


def compare(one: str, other: str) -> list[Difference]:
    """Two profiles by name or file. Raises Refused where one cannot be read."""
    files = profile_file(one), profile_file(other)
    folders = [folder for _, folder in search_path()]
    sides = [_side(file, folders, named=True) for file in files]
    return _only([_difference(f"{one} → {other}", *sides)])


def compare_with_now(team: Team) -> list[Difference]:
    """A team's pinned profiles, and what they would be over what this version of hpc-launch ships."""
    layers = team_sources.live_below(team.name)
    with team_sources.without_pins(team) as folder:
        found = []
        for profile in team_sources.profiles_in(folder):
            pinned = _side(team.folder / profile.name, layers)
            then = team_sources.recorded_scripts(team, profile.stem)
            old = Side(pinned.values, pinned.origins, then or pinned.scripts, pinned.faults)
            found.append(_difference(profile.stem, old, _side(profile, layers, overlaid=not then)))
    return _only(found)


def compare_revisions(team: Team, revisions: Sequence[str]) -> list[Difference]:
    """A team's profiles as they are pinned and at another revision, or at two others."""
    if team.commit is None:
        raise UsageError(f"{team.name} is a folder, which has no revisions", "compare files by their paths")
    layers = team_sources.live_below(team.name)
    with team_sources.at_revision(team, revisions[-1]) as new:
        if len(revisions) == 1:
            return _only(_both(team.folder, new, layers))
        with team_sources.at_revision(team, revisions[0]) as old:
            return _only(_both(old, new, layers))


def team_or_none(name: str) -> Team | None:
    """The team of this name, if there is one."""
    return find_team(name) if "/" not in name else None


def _only(found: Iterable[Difference]) -> list[Difference]:
    return [one for one in found if one.changes or one.scripts or one.note]


def _both(old: Path, new: Path, layers: list[Path]) -> Iterator[Difference]:
    names = {path.name for folder in (old, new) for path in team_sources.profiles_in(folder)}
    for name in sorted(names):
        before, after = old / name, new / name
        if not before.exists() or not after.exists():
            yield Difference(Path(name).stem, [], {}, "is new" if after.exists() else "is gone")
            continue
        try:
            yield _difference(Path(name).stem, _side(before, layers), _side(after, layers))
        except Refused as refused:
            yield Difference(Path(name).stem, [], {}, str(refused.findings[0]))


def _side(path: Path, folders: list[Path], *, overlaid: bool = True, named: bool = False) -> Side:
    findings: list[Finding] = []
    layers = chain(path, findings, own=named, folders=folders)
    if not layers or errors(_readable(findings)):
        raise Refused(findings)
    merged = merge_layers(layers, None, findings)
    origins = {line.key: str(line.origin) for line in explained(layers, merged)}
    users = config_folder() / "user.yaml"
    made = [] if _is_base(merged) else made_from(path, (), users if overlaid and users.is_file() else None, folders)
    faults = {one.job: str(one.findings[0]) for one in made if one.script is None}
    return Side(_values(merged), origins, _scripts(made), faults)


def _readable(findings: list[Finding]) -> list[Finding]:
    """Raw lines that are not trusted hinder nobody from comparing."""
    return [finding for finding in findings if finding.code != FindingCode.UNTRUSTED_SHELL]


def _is_base(merged: Merged) -> bool:
    return merged.data.get("kind") == "base"


def _scripts(made: Sequence[GoldenScript]) -> dict[str, str]:
    return {one.job: one.script for one in made if one.script is not None}


def _values(merged: Merged) -> dict[str, Any]:
    """What a profile means, so that `1h` and `60m` are the same; as it is written where its types do not fit."""
    profile, _ = read(merged, SiteProfile)
    data = merged.data if profile is None else _said(msgspec.to_builtins(profile), merged.data)
    return {key: value for key, value in data.items() if key not in _LEFT_OUT}


def _said(typed: Any, written: Any) -> Any:
    """The typed values of the keys that are written."""
    if isinstance(typed, dict) and isinstance(written, dict):
        return {key: _said(value, written[key]) for key, value in typed.items() if key in written}
    if isinstance(typed, list) and isinstance(written, list) and len(typed) == len(written):
        return [_said(*pair) for pair in zip(typed, written, strict=True)]
    return typed


def _difference(name: str, old: Side, new: Side) -> Difference:
    scripts = {}
    for job in dict.fromkeys([*old.scripts, *new.scripts]):
        texts = _lines(old.scripts.get(job, "")), _lines(new.scripts.get(job, ""))
        lines = difflib.unified_diff(*texts, n=0, lineterm="")
        kept = [line for line in list(lines)[2:] if not line.startswith("@@")]
        if kept and job in old.scripts and job in new.scripts:
            scripts[job] = kept
        elif kept:
            side, word = (new, "no longer") if job in old.scripts else (old, "not before")
            scripts[job] = [f"{word} made: {side.faults.get(job, 'there is no such job')}"]
    fault = next(iter({**new.faults, **old.faults}.values()), "")
    note = f"no script can be made: {fault}" if fault and not old.scripts and not new.scripts else ""
    return Difference(name, list(_changes("", old.values, new.values, old, new)), scripts, note)


def _lines(script: str) -> list[str]:
    """The lines of a script, without the one that names the release of hpc-launch."""
    return [line for line in script.splitlines() if not line.startswith("# Written by hpc-launch ")]


def _changes(key: str, old: Any, new: Any, before: Side, after: Side) -> Iterator[ProfileChange]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from _changes(f"{key}.{name}".lstrip("."), old.get(name), new.get(name), before, after)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _items(key, old, new, before, after)
    elif old != new:
        yield ProfileChange(key, _flow(old), _flow(new), _origin(key, old, before), _origin(key, new, after))


def _items(key: str, old: list[Any], new: list[Any], before: Side, after: Side) -> Iterator[ProfileChange]:
    """Items that came and went, so that one that was put in does not change all that follow."""
    texts = [[json.dumps(item, sort_keys=True, default=str) for item in side] for side in (old, new)]
    matcher = difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False)
    for how, first, last, start, end in matcher.get_opcodes():
        if how == "equal":
            continue
        for at in range(first, last):
            here = f"{key}.{at}"
            yield ProfileChange(here, _flow(old[at]), None, _origin(here, old[at], before))
        for at in range(start, end):
            here = f"{key}.{at}"
            yield ProfileChange(here, None, _flow(new[at]), "", _origin(here, new[at], after))


def _flow(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _origin(key: str, value: Any, side: Side) -> str:
    if value is None:
        return ""
    inside = f"{key}."
    return side.origins.get(key) or next((text for known, text in side.origins.items() if known.startswith(inside)), "")
