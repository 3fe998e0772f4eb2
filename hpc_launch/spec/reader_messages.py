"""The wording of the reader's findings: what was expected, what stands there, and how it might be mended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.document import Path
from hpc_launch.spec.scalars import scalar
from hpc_launch.spec.shell_text import visible
from hpc_launch.spec.type_hints import Member, fields_of, members, structs_in
from hpc_launch.spec.units import UNITS

_KINDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}


def label(path: Path) -> str:
    """A path as it is spoken of: `environment.modules[2]`."""
    return visible("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix("."))


def shown(value: Any, written: str | None = None) -> str:
    """What stands there; `written` is how a number is written in the file."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {written or value}"
    if isinstance(value, str):
        return f"the text {value if len(value) <= 40 else value[:37] + '...'!r}"
    return "a list" if isinstance(value, list) else "a mapping"


def expected(alternatives: tuple[Member, ...]) -> str:
    """What may stand there, null left aside."""
    return " or ".join(dict.fromkeys(_in_words(member) for member in alternatives if member.kind is not type(None)))


def _in_words(member: Member) -> str:
    if member.kind is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in member.args)
    if member.form is not None:
        return member.form
    return UNITS[member.unit].words if member.unit else _KINDS.get(member.kind, "a mapping")


def mending(kinds: set[Any], value: Any) -> str | None:
    """How the value might be written so that it is right."""
    if isinstance(value, str):
        if {int, float} & kinds and isinstance(scalar(value), (int, float)):
            return "take the quotes away"
        if {int, float} & kinds and isinstance(scalar(value.lstrip("0") or "0"), int):
            return "take the leading zeros away"
        if bool in kinds:
            return "write true or false; yes, no, on and off are texts"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"write {int(value)}"
    if list in kinds and value is not None and not isinstance(value, Mapping):
        return "write a list: [one, two]"
    if isinstance(value, str) and any(isinstance(kind, type) and issubclass(kind, (dict, Struct)) for kind in kinds):
        return "write `key: value` lines below it, indented, with a space behind the colon"
    return None


def where_it_belongs(key: str, type_: type[Struct], root: type[Struct]) -> str:
    """What to do with a key that `type_` does not have, in a file of type `root`."""
    fields = fields_of(type_)
    below = [
        f"`{name}`"
        for name, info in fields.items()
        if any(member.is_struct and key in fields_of(member.kind) for member in members(info.type))
    ]
    if below:
        return f"it belongs under {' or '.join(below)}"
    if type_ is not root and key in fields_of(root):
        return "it belongs at the top level: mind the indent"
    near = nearest(key, list(fields))
    return f"did you mean `{near}`?" if near is not None else "known here: " + ", ".join(fields)


def nearest(word: str, known: list[str]) -> str | None:
    """The one of `known` that `word` was probably meant to be."""
    # Imported on a fault only: no good file needs it.
    import difflib

    plain = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def what_for(root: type[Struct], path: Path) -> str | None:
    """The description of the innermost field on the way to a value: the hint where there is no better one."""
    told, types = None, [root]
    for key in path:
        info = next((fields_of(type_)[key] for type_ in types if key in fields_of(type_)), None)
        if info is None:
            continue  # a key of a mapping with free names, or the number of an item
        told = about(info.type, str(key)) or told
        types = structs_in(info.type)
    return told


def about(annotation: Any, key: str) -> str | None:
    """What a field is for and an example, from its Meta."""
    metas = tuple(meta for member in members(annotation) for meta in member.metas)
    told = about_metas(metas)
    example = next((meta.examples[0] for meta in metas if meta.examples), None)
    return f"{told or ''} For example `{key}: {example}`".strip() if example is not None else told


def about_metas(metas: tuple[Meta, ...]) -> str | None:
    """The description that the outermost Meta gives."""
    return next((meta.description for meta in reversed(metas) if meta.description), None)
