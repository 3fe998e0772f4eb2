"""Check the keys of a configuration file against a table of the keys that its program reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath
from hpc_launch.job.reader_messages import nearest
from hpc_launch.plan.strategies.config_file import ConfigFile
from hpc_launch.plan.strategies.key_tables import Kind

_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "number": "a number",
    "text": "a string",
    "object": "a mapping",
}


class KeyTable(Struct, frozen=True):
    """The keys of one mapping. `unknown` says what the program does with a key that it does not know."""

    title: str
    keys: Mapping[str, Kind]
    unknown: str
    removed: Mapping[str, str] = {}
    """Keys that the program refuses now, with what to do instead."""
    deprecated: Mapping[str, str] = {}
    """Keys that still work, with the name that replaced each."""
    auto: bool = False
    """Whether the word `auto` is accepted in place of any value."""


def check_keys(file: ConfigFile, path: KeyPath, table: KeyTable) -> list[Finding]:
    """Report unknown, removed and deprecated keys of the mapping at `path`, and values of the wrong type."""
    mapping: Any = file.data
    for key in path:
        mapping = mapping.get(key) if isinstance(mapping, dict) else None
    return list(_findings(file, path, table, mapping)) if isinstance(mapping, dict) else []


def _findings(file: ConfigFile, path: KeyPath, table: KeyTable, mapping: dict[Any, Any]) -> Iterator[Finding]:
    for key, value in mapping.items():
        place = file.place(*path, key)
        if key in table.removed:
            yield Finding(
                FindingCode.REMOVED_CONFIG_KEY, f"`{key}` was removed from {table.title}", place, table.removed[key]
            )
        elif key in table.deprecated:
            message, hint = f"`{key}` is deprecated in {table.title}", f"use `{table.deprecated[key]}`"
            yield Finding(FindingCode.DEPRECATED_CONFIG_KEY, message, place, hint, "warning")
        elif key not in table.keys:
            near = nearest(str(key), [*table.keys])
            hint = f"did you mean `{near}`?" if near else f"known keys: {', '.join(table.keys)}"
            yield Finding(
                FindingCode.UNKNOWN_CONFIG_KEY, f"unknown key `{key}` in {table.title}: {table.unknown}", place, hint
            )
        elif not fits(value, table.keys[key], auto=table.auto):
            message = f"`{key}` must be {_WORDS[table.keys[key]]}, not {_shown(value)}"
            yield Finding(FindingCode.INVALID_CONFIG_VALUE, message, place, _fix(value, table.keys[key]))


def fits(value: Any, kind: Kind, *, auto: bool = False) -> bool:
    """Whether a value is of a kind. null always fits: it means the default."""
    if value is None or kind == "any" or (auto and value == "auto"):
        return True
    if kind == "bool":
        return isinstance(value, bool)
    if kind in {"int", "number"}:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or value == value // 1)
    return isinstance(value, str if kind == "text" else dict)


def _fix(value: Any, kind: Kind) -> str | None:
    if isinstance(value, str) and kind in {"bool", "int", "number"}:
        return "write it without quotes"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
