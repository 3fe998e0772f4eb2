"""What an untrusted layer removes from the trusted ones with merge operators, null or another list: that changes which
code runs as setting a value does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import KeyPath
from hpc_launch.job.merge import Layer, Merged, merge
from hpc_launch.job.shell_text import visible
from hpc_launch.sites.code_values import CodeValue, values_requiring_trust
from hpc_launch.sites.harmless_variables import variable_requiring_trust

_GUARDED = frozenset(
    "prelude env environment containers srun_options mpirun_options sbatch srun caches defaults rules".split()
)
_BY_ENTRY = frozenset({"queues", "node_classes", "stacks", "options"})
"""Tables whose entries may be removed as a whole: nothing of them is used then."""
_SIGNS: Mapping[str, str] = {"remove": "-", "replace": "="}
_DEFAULTS = ("queues", "node_classes")
"""Tables whose entries have `defaults:` that apply on top of those of the profile."""


def removed_values(
    parts: Sequence[Layer], hints: Mapping[int, str], merged: Merged, findings: Sequence[Finding]
) -> Iterator[Finding]:
    """HL313 for each value of the trusted layers that is missing from the merged ones because of an untrusted layer.

    `hints` has the untrusted layers by their number in `parts`, each with how to trust it.
    """
    trusted = merge([part for at, part in enumerate(parts) if at not in hints])
    reported = {finding.place for finding in findings if finding.code == FindingCode.UNTRUSTED_CODE}
    for value in _missing(trusted.data, merged.data):
        at = next(at for at in hints if value in _missing(trusted.data, _up_to(parts, hints, at)))
        place = _place(parts[at], value.path)
        if place not in reported:
            reported.add(place)
            yield _finding(value, place, hints[at])
    guarded = [value for value in _guarded(trusted.data) if value.path[0] == "defaults"]
    for at, hint in hints.items():
        for path, place, _ in _removals(parts[at]):
            inside = path[2:] if path[0] in _DEFAULTS else ()
            lost = next((value for value in guarded if inside and value.path[: len(inside)] == inside), None)
            if lost is not None:
                yield _finding(lost, place, hint)


def removals_to_review(layer: Layer, hint: str) -> Iterator[Finding]:
    """HL313 for each place at which a file removes values that require trust, whatever it extends."""
    for path, place, how in _removals(layer):
        if not _GUARDED.isdisjoint(path):
            text = ".".join(map(str, path)) + how
            message = f"removal of values of its bases in an untrusted profile: `{visible(text)}`"
            yield Finding(FindingCode.UNTRUSTED_CODE, message, place, hint)


def _finding(value: CodeValue, place: Place | None, hint: str) -> Finding:
    message = f"{value.kind} of a trusted profile, removed in an untrusted profile: `{visible(value.text)}`"
    return Finding(FindingCode.UNTRUSTED_CODE, message, place, hint)


def _up_to(parts: Sequence[Layer], hints: Mapping[int, str], last: int) -> dict[str, Any]:
    """The trusted layers, and of the untrusted ones those up to a number."""
    return merge([part for at, part in enumerate(parts) if at not in hints or at <= last]).data


def _missing(trusted: Mapping[str, Any], merged: Mapping[str, Any]) -> list[CodeValue]:
    """Values that the trusted layers set, and the merged ones do not."""
    left = Counter(map(_key, _guarded(merged)))
    missing = []
    for value in _guarded(trusted):
        key = _key(value)
        if left[key]:
            left[key] -= 1
        elif not _is_of_removed_entry(value.path, merged):
            missing.append(value)
    return missing


def _is_of_removed_entry(path: KeyPath, merged: Mapping[str, Any]) -> bool:
    table = merged.get(str(path[0]))
    return path[0] in _BY_ENTRY and isinstance(table, dict) and path[1] not in table


def _key(value: CodeValue) -> tuple[KeyPath, str]:
    """A value without its numbers in lists, which change."""
    return tuple(part for part in value.path if not isinstance(part, int)), value.text


def _guarded(data: Mapping[str, Any]) -> Iterator[CodeValue]:
    """The values of a profile that an untrusted layer must not remove."""
    for value in values_requiring_trust(data):
        if "prelude" not in value.path and not _GUARDED.isdisjoint(value.path):
            yield value
    yield from _steps_and_variables(data, ())


def _steps_and_variables(value: Any, path: KeyPath) -> Iterator[CodeValue]:
    """Every step of a prelude, and the variables that only a trusted file may unset, such as PYTHONSAFEPATH."""
    if path[-1:] == ("prelude",) and isinstance(value, list):
        for at, step in enumerate(value):
            yield CodeValue((*path, at), "step", json.dumps(step, ensure_ascii=False))
        return
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _steps_and_variables(child, (*path, key))
    elif value is not None and "env" in path[:-1] and (path[-2] == "env" or path[-2] in {"set", "prepend"}):
        name = path[-1]
        if isinstance(name, str) and variable_requiring_trust(name, None):
            yield CodeValue(path, f"variable {name}", "")


def _removals(layer: Layer) -> Iterator[tuple[KeyPath, Place | None, str]]:
    """Where a layer removes or replaces what is below it, and how."""
    for path, operators in layer.operators.items():
        yield from ((path, one.place, _SIGNS[one.kind]) for one in operators if one.kind in _SIGNS)
    yield from ((path, place, ": null") for path, place in layer.places.items() if _is_null(layer.data, path))


def _is_null(value: Any, path: KeyPath) -> bool:
    for key in path:
        if isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return False
    return value is None


def _place(layer: Layer, path: KeyPath) -> Place | None:
    """Where a layer changes something at or above a path."""
    for end in range(len(path), -1, -1):
        operators = layer.operators.get(path[:end])
        place = operators[0].place if operators else None
        place = place or layer.places.get(path[:end]) or layer.key_places.get(path[:end])
        if place is not None:
            return place
    return None
