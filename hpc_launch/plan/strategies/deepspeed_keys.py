"""The keys of a DeepSpeed configuration: the table of a release, with what only our notes know."""

from __future__ import annotations

from typing import Any

from hpc_launch.job.document import KeyPath
from hpc_launch.plan.strategies.key_check import KeyTable
from hpc_launch.plan.strategies.key_tables import TOP_LEVEL, LibraryKeys, read_notes


def path_of(mapping: str) -> KeyPath:
    """The path of a mapping by its dotted name."""
    return () if mapping == TOP_LEVEL else tuple(mapping.split("."))


def key_tables(keys: LibraryKeys) -> dict[KeyPath, KeyTable]:
    """A table for each mapping, by its path. A key that this release still reads does not count as removed."""
    notes: dict[str, dict[str, Any]] = read_notes("deepspeed")["mappings"]
    result = {}
    for mapping, note in notes.items():
        known = keys.mappings.get(mapping, {})
        deprecated = {**keys.deprecated.get(mapping, {}), **note.get("deprecated", {})}
        removed = {**dict.fromkeys(keys.removed.get(mapping, ()), "remove it"), **note.get("removed", {})}
        result[path_of(mapping)] = KeyTable(
            title=note["title"],
            keys={key: kind for key, kind in (known | note.get("kinds", {})).items() if key not in deprecated},
            unknown=note["unknown"],
            removed={key: hint for key, hint in removed.items() if key not in known},
            deprecated=deprecated,
            auto=note.get("auto", False),
        )
    return result


def changed_defaults() -> dict[KeyPath, str]:
    """Each key whose default changed between releases, by its path, with the change."""
    return {path_of(name): change for name, change in read_notes("deepspeed")["changed_defaults"].items()}
