"""Expand short forms: `launcher: torchrun` becomes `launcher: {name: torchrun}`. Each value keeps its position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct

from hpc_launch.job.document import Document, KeyPath, Source
from hpc_launch.job.type_hints import Member, fields_of, members

T = TypeVar("T")


def long_form(source: Source, type_: type[Struct], *, path: KeyPath = ()) -> Document:
    """A copy of `source` with all short forms at and below `path` expanded, and matching tables.

    Apply it to each layer before merging; otherwise `launcher: torchrun` in one layer and `launcher: {options: […]}` in
    another would replace each other. Nothing is validated; values that match no short form stay.
    """
    tables = Document({}, dict(source.places), dict(source.key_places), dict(source.written))
    expander = _ShortFormExpander(source, tables)
    tables.data.update(_replace_at(source.data, path, lambda value: expander.value(type_, value, path, path)))
    return tables


def accepts(member: Member, value: Any) -> bool:
    """Whether `member` accepts a value of this YAML type, regardless of short forms and limits."""
    kind = member.kind
    if kind is Any:
        return True
    if isinstance(value, Mapping):
        return kind is dict or member.is_struct
    if isinstance(value, list):
        return kind in (list, tuple)
    if kind is Literal:
        return any(value == choice and type(value) is type(choice) for choice in member.args)
    if value is None:
        return kind is type(None)
    if isinstance(value, bool):
        return kind in (bool, str)
    if member.unit is not None:
        return True
    return kind is str or kind is type(value) or (kind is float and isinstance(value, int))


def _replace_at(data: Any, path: KeyPath, change: Callable[[Any], Any]) -> Any:
    """A copy of `data` with `change` applied to the value at `path`, or to an empty mapping if there is none."""
    if not path:
        return change(data)
    return {**data, path[0]: _replace_at(data.get(path[0], {}), path[1:], change)}


class _ShortFormExpander(NamedTuple):
    """Expands short forms in the data of `source`, and records moved and new positions in `tables`."""

    source: Source
    tables: Document

    def value(self, annotation: Any, value: Any, old: KeyPath, new: KeyPath) -> Any:
        """The long form of `value`, whose path is `old` in the source and `new` in the result."""
        if new != old:
            _move(self.tables.places, old, new)
            _move(self.tables.key_places, old, new)
            _move(self.tables.written, old, new)
        alternatives = members(annotation)
        struct = next((member.kind for member in alternatives if member.is_struct), None)
        types: dict[str, Any] = {key: info.type for key, info in fields_of(struct).items()} if struct else {}
        if isinstance(value, Mapping):
            value_type = next((member.args[1] for member in alternatives if member.kind is dict and member.args), Any)
            return {
                key: self.value(types.get(key, value_type), child, (*old, key), (*new, key))
                for key, child in value.items()
            }
        shorthand = getattr(struct, "__short_forms__", None)
        if value is not None and shorthand is not None and not any(accepts(member, value) for member in alternatives):
            mapping = shorthand(value)
            if mapping is not None:
                result = {}
                for key, child in mapping.items():
                    key_path = (*new, key)
                    if old in self.source.places:
                        self.tables.places.setdefault(key_path, self.source.places[old])
                    origin = old if child is value else key_path
                    result[key] = self.value(types.get(key, Any), child, origin, key_path)
                return result
        if isinstance(value, list):
            item_type = next((member.args[0] for member in alternatives if member.kind is list and member.args), Any)
            return [self.value(item_type, child, (*old, at), (*new, at)) for at, child in enumerate(value)]
        return value


def _move(table: dict[KeyPath, T], old: KeyPath, new: KeyPath) -> None:
    if old in table:
        table[new] = table[old]
