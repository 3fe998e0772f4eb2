"""The tables of docs/reference/json.md: one for each comment `<!-- fields of TYPE -->`, with the fields of a type of
docs/output_types and of the objects inside it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields

from docs.output_types import OUTPUTS

_TABLE = re.compile(r"(?<=^<!-- fields of )(\w+)( -->\n\n)(?:\|.*\n)*\n*", re.MULTILINE)


def with_tables(page: str) -> str:
    """The page with its tables renewed. A type with a table of its own is left out of the others."""
    own = [match[1] for match in _TABLE.finditer(page)]
    kinds = structs()

    def table(match: re.Match[str]) -> str:
        rows = [f"| `{name}` | {text} |\n" for name, text in _rows(kinds[match[1]], own)]
        return f"{match[1]}{match[2]}| field | meaning |\n|---|---|\n{''.join(rows)}\n"

    return _TABLE.sub(table, page).rstrip("\n") + "\n"


def structs() -> dict[str, type[Struct]]:
    """Every type of object that a verb prints, by name. Raises ValueError if two have the same name."""
    found: dict[str, type[Struct]] = {}
    for kind in _structs(part for kinds in OUTPUTS.values() for part in kinds):
        for one in (kind, *(base for base in kind.__mro__[1:] if issubclass(base, Struct))):
            if found.setdefault(one.__name__, one) is not one:
                raise ValueError(f"two types are called {one.__name__}")
    return found


def _structs(hints: Iterable[Any]) -> Iterator[type[Struct]]:
    for hint in hints:
        if isinstance(hint, type) and issubclass(hint, Struct):
            yield hint
            yield from _structs(get_type_hints(hint).values())
        else:
            yield from _structs(get_args(hint))


def _rows(kind: type[Struct], own: Collection[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each field, such as `attempts[].number`, with its meaning. Raises ValueError for a field without one."""
    elsewhere = {field.name for base in kind.__bases__ if base.__name__ in own for field in fields(base)}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if field.name in elsewhere:
            continue
        hint, name = hints[field.name], prefix + field.encode_name
        meaning = next((meta.description for meta in get_args(hint) if isinstance(meta, Meta)), None)
        if not meaning:
            raise ValueError(f"{kind.__name__}.{field.name} has no description")
        choices = [f"`{value}`" for value in _choices(hint)]
        missing = not all(choice in meaning for choice in choices)
        yield name, meaning + (f" (one of {', '.join(choices)})" if missing else "")
        for inner, path in _inside(hint):
            if inner.__name__ not in own:
                yield from _rows(inner, own, f"{name}{path}.")


def _choices(hint: Any) -> list[Any]:
    """The values of a field that has only a few."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for part in get_args(hint) if get_origin(hint) not in (dict, list) for value in _choices(part)]


def _inside(hint: Any, path: str = "") -> Iterator[tuple[type[Struct], str]]:
    """The types of objects in a value, each with the way to it: `[]` for a list, `.NAME` for an object of many."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint, path
        return
    here = {list: f"{path}[]", dict: f"{path}.NAME"}.get(get_origin(hint), path)
    for part in get_args(hint):
        yield from _inside(part, here)
