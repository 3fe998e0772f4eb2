"""Wording of the reader's findings: what was expected, what was found and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.document import KeyPath, scalar
from hpc_launch.job.shell_text import visible
from hpc_launch.job.type_hints import Member, descriptions, fields_of, members, structs_in
from hpc_launch.job.units import UNITS

_KINDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}


def label(path: KeyPath) -> str:
    """Format a path: `environment.modules[2]`."""
    return visible("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix("."))


def describe(value: Any, written: str | None = None) -> str:
    """Describe a value. `written` is a number as written in the file."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {written or value}"
    if isinstance(value, str):
        return f"the text {value if len(value) <= 40 else value[:37] + '...'!r}"
    return "a list" if isinstance(value, list) else "a mapping"


def describe_expected(alternatives: tuple[Member, ...]) -> str:
    """Describe the accepted types, except null."""
    names = list(dict.fromkeys(_describe_member(member) for member in alternatives if member.kind is not type(None)))
    if _KINDS[float] in names and _KINDS[int] in names:
        names.remove(_KINDS[int])
    return " or ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])}, or {names[-1]}"


def _describe_member(member: Member) -> str:
    if member.kind is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in member.args)
    if member.text_format is not None:
        return member.text_format
    return UNITS[member.unit].description if member.unit else _KINDS.get(member.kind, "a mapping")


def correction_hint(kinds: set[Any], value: Any) -> str | None:
    """Hint how to write the value so that it has one of the accepted types."""
    if isinstance(value, str):
        if {int, float} & kinds and isinstance(scalar(value), (int, float)):
            return "remove the quotes"
        if {int, float} & kinds and isinstance(scalar(value.lstrip("0") or "0"), int):
            return "remove the leading zeros"
        if bool in kinds:
            return "write true or false; yes, no, on and off are read as text"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"write {int(value)}"
    if list in kinds and value is not None and not isinstance(value, Mapping):
        return "write a list: [one, two]"
    if isinstance(value, str) and any(isinstance(kind, type) and issubclass(kind, (dict, Struct)) for kind in kinds):
        return "write indented `key: value` lines below it, with a space after the colon"
    return None


def unknown_key_hint(key: str, type_: type[Struct], root: type[Struct]) -> str:
    """Hint for a key that `type_` does not have, in a file of type `root`."""
    fields = fields_of(type_)
    parents = [
        f"`{name}`"
        for name, info in fields.items()
        if any(member.is_struct and key in fields_of(member.kind) for member in members(info.type))
    ]
    if parents:
        return f"move it under {' or '.join(parents)}"
    if type_ is not root and key in fields_of(root):
        return "move it to the top level: check the indentation"
    closest = nearest(key, list(fields))
    return f"did you mean `{closest}`?" if closest is not None else "valid keys: " + ", ".join(fields)


def nearest(word: str, known: list[str]) -> str | None:
    """The most similar name in `known`, if any is close enough."""
    # Imported only for an invalid file, to keep start-up fast.
    import difflib

    normalized = {name.lower().replace("-", "_"): name for name in known}
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), normalized, n=1, cutoff=0.6)
    return normalized[matches[0]] if matches else None


def description_at(root: type[Struct], path: KeyPath) -> str | None:
    """Description of the innermost field on the path: the hint where there is no better one."""
    description, types = None, [root]
    for key in path:
        owner = next((type_ for type_ in types if key in fields_of(type_)), None)
        if owner is None:
            continue  # a user-chosen key, or a list index
        description = field_hint(owner, str(key)) or description
        types = structs_in(fields_of(owner)[str(key)].type)
    return description


def field_hint(type_: type[Struct], key: str) -> str | None:
    """A field's description and example."""
    metas = tuple(meta for member in members(fields_of(type_)[key].type) for meta in member.metas)
    description = descriptions(type_).get(key) or description_of(metas)
    example = next((meta.examples[0] for meta in metas if meta.examples), None)
    return f"{description or ''} For example `{key}: {example}`".strip() if example is not None else description


def description_of(metas: tuple[Meta, ...]) -> str | None:
    """Description from the outermost Meta."""
    return next((meta.description for meta in reversed(metas) if meta.description), None)
