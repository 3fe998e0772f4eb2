"""Tables of the keys that another program knows, and the check of a file against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from hpc_launch.base.findings import Finding, Place
from hpc_launch.plan.strategies.text import Located
from hpc_launch.spec.merge import Path
from hpc_launch.spec.reader_messages import nearest

Kind = Literal["bool", "int", "number", "text", "object", "list", "any"]
"""What a value has to be. `int` takes 5e8 as well, for DeepSpeed does."""

_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "number": "a number",
    "text": "a text",
    "object": "a mapping",
    "list": "a list",
}


class Table(Struct, frozen=True):
    """The keys of one mapping. `unknown` says what the program does with a key that it does not know."""

    what: str
    keys: Mapping[str, Kind]
    unknown: str
    removed: Mapping[str, str] = {}
    """Keys that are refused today, with what to do in their place."""
    deprecated: Mapping[str, str] = {}
    """Keys that still count, with the name that replaced each."""
    auto: bool = False
    """Whether the word `auto` may stand in place of any value."""


def flag(name: str) -> Place:
    """The place of a value from the command line."""
    return Place(name)


def check_keys(file: Located, path: Path, table: Table) -> list[Finding]:
    """All keys of the mapping at `path` that are unknown, removed or deprecated, and values of the wrong type."""
    mapping: Any = file.data
    for key in path:
        mapping = mapping.get(key) if isinstance(mapping, dict) else None
    return list(_faults(file, path, table, mapping)) if isinstance(mapping, dict) else []


def _faults(file: Located, path: Path, table: Table, mapping: dict[Any, Any]) -> Iterator[Finding]:
    for key, value in mapping.items():
        place = file.place(*path, key)
        if key in table.removed:
            yield Finding("HL602", f"`{key}` was removed from {table.what}", place, table.removed[key])
        elif key in table.deprecated:
            message, hint = f"`{key}` is an old name in {table.what}", f"use `{table.deprecated[key]}`"
            yield Finding("HL603", message, place, hint, "warning")
        elif key not in table.keys:
            near = nearest(str(key), [*table.keys])
            hint = f"did you mean `{near}`?" if near else f"known here: {', '.join(table.keys)}"
            yield Finding("HL601", f"unknown key `{key}` in {table.what}: {table.unknown}", place, hint)
        elif not fits(value, table.keys[key], auto=table.auto):
            message = f"`{key}` has to be {_WORDS[table.keys[key]]}, not {_shown(value)}"
            yield Finding("HL604", message, place, _mending(value, table.keys[key]))


def fits(value: Any, kind: Kind, *, auto: bool = False) -> bool:
    """Whether a value is of a kind. null is taken everywhere: it means the default."""
    if value is None or kind == "any" or (auto and value == "auto"):
        return True
    if kind == "bool":
        return isinstance(value, bool)
    if kind in {"int", "number"}:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or value == value // 1)
    return isinstance(value, {"text": str, "object": dict, "list": list}[kind])


def _mending(value: Any, kind: Kind) -> str | None:
    if isinstance(value, str) and kind in {"bool", "int", "number"}:
        return "write it without quotes"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
