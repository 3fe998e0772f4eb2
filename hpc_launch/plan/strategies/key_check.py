"""Check a configuration file: the types of its values, and, where a library lists what it reads, the names of its keys.

A type is that of the value which hpc-launch itself writes for the key, so there is no table of types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath
from hpc_launch.job.reader_messages import nearest
from hpc_launch.plan.strategies.config_file import ConfigFile

Kind = Literal["bool", "int", "number", "text", "object", "any"]
"""The type of a value. `int` includes 5e8, as in DeepSpeed."""

_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "number", str: "text", dict: "object"}
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "number": "a number",
    "text": "a string",
    "object": "a mapping",
}


class LibraryKeys(Struct, frozen=True):
    """What an installed library reads: keys by the dotted name of their mapping; '' is the file itself."""

    mappings: Mapping[str, tuple[str, ...]]
    removed: tuple[str, ...] = ()
    """Dotted names that the library refuses, because it removed them."""
    deprecated: Mapping[str, str] = {}
    """Dotted names that still work, with the key that replaced each."""


def kinds_of(example: Mapping[str, Any], path: KeyPath = ()) -> dict[KeyPath, Kind]:
    """The kind of every value of an example, by its path."""
    kinds: dict[KeyPath, Kind] = {}
    for key, value in example.items():
        kinds[(*path, key)] = _KINDS.get(type(value), "any")
        if isinstance(value, dict):
            kinds |= kinds_of(value, (*path, key))
    return kinds


def check_kinds(file: ConfigFile, kinds: Mapping[KeyPath, Kind], *, auto: bool = False) -> Iterator[Finding]:
    """Report values of another kind. `auto`: whether this word may stand in place of any value."""
    for path, kind in kinds.items():
        value = file.get(path)
        if not fits(value, kind) and not (auto and value == "auto"):
            message = f"`{path[-1]}` must be {_WORDS[kind]}, not {shorten(value)}"
            hint = "write it without quotes" if isinstance(value, str) and kind in {"bool", "int", "number"} else None
            yield Finding(FindingCode.INVALID_CONFIG_VALUE, message, file.place(*path), hint)


def check_names(
    file: ConfigFile,
    path: KeyPath,
    known: tuple[str, ...],
    title: str,
    unknown: str,
    *,
    reported: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Report the keys of the mapping at `path` that are not known. `unknown`: what the program does with them."""
    mapping = file.get(path)
    for key in mapping if isinstance(mapping, dict) else ():
        if key not in known and key not in reported:
            near = nearest(str(key), list(known))
            hint = f"did you mean `{near}`?" if near else f"known keys: {', '.join(known)}"
            message = f"unknown key `{key}` in {title}: {unknown}"
            yield Finding(FindingCode.UNKNOWN_CONFIG_KEY, message, file.place(*path, key), hint)


def fits(value: Any, kind: Kind) -> bool:
    """Whether a value is of a kind. null always fits: it means the default."""
    if value is None or kind == "any":
        return True
    if kind == "bool":
        return isinstance(value, bool)
    if kind in {"int", "number"}:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or value == value // 1)
    return isinstance(value, str if kind == "text" else dict)


def shorten(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
