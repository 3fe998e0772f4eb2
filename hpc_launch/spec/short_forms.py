"""Short forms written out: `launcher: torchrun` becomes `launcher: {name: torchrun}`, each value keeping its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct

from hpc_launch.spec.document import Document, Path, Source
from hpc_launch.spec.type_hints import Member, fields_of, members

T = TypeVar("T")


def long_form(source: Source, type_: type[Struct], *, path: Path = ()) -> Document:
    """A copy of `source` with all short forms at and below `path` written out, and the tables to match.

    To be applied to each layer before layers are merged: else `launcher: torchrun` in one and
    `launcher: {options: […]}` in another would replace each other. Nothing is checked; what fits no form stays.
    """
    tables = Document({}, dict(source.places), dict(source.key_places), dict(source.written))
    lengthening = _Lengthening(source, tables)
    tables.data.update(_replaced(source.data, path, lambda held: lengthening.value(type_, held, path, path)))
    return tables


def takes(member: Member, value: Any) -> bool:
    """Whether a value of this YAML type goes into `member`, short forms and limits left aside."""
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


def _replaced(data: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """A copy of `data` with `change` applied to what stands at `path`, an empty mapping where nothing does."""
    if not path:
        return change(data)
    return {**data, path[0]: _replaced(data.get(path[0], {}), path[1:], change)}


class _Lengthening(NamedTuple):
    """Writes short forms out: data of `source`, and what moves or is new entered into `tables`."""

    source: Source
    tables: Document

    def value(self, annotation: Any, value: Any, old: Path, new: Path) -> Any:
        """The long form of `value`, which stands at `old` in the source and will stand at `new`."""
        if new != old:
            _move(self.tables.places, old, new)
            _move(self.tables.key_places, old, new)
            _move(self.tables.written, old, new)
        alternatives = members(annotation)
        struct = next((member.kind for member in alternatives if member.is_struct), None)
        types: dict[str, Any] = {key: info.type for key, info in fields_of(struct).items()} if struct else {}
        if isinstance(value, Mapping):
            of_values = next((member.args[1] for member in alternatives if member.kind is dict and member.args), Any)
            return {
                key: self.value(types.get(key, of_values), child, (*old, key), (*new, key))
                for key, child in value.items()
            }
        shorthand = getattr(struct, "__short_forms__", None)
        if value is not None and shorthand is not None and not any(takes(member, value) for member in alternatives):
            mapping = shorthand(value)
            if mapping is not None:
                result = {}
                for key, child in mapping.items():
                    here = (*new, key)
                    if old in self.source.places:
                        self.tables.places.setdefault(here, self.source.places[old])
                    origin = old if child is value else here
                    result[key] = self.value(types.get(key, Any), child, origin, here)
                return result
        if isinstance(value, list):
            of_items = next((member.args[0] for member in alternatives if member.kind is list and member.args), Any)
            return [self.value(of_items, child, (*old, at), (*new, at)) for at, child in enumerate(value)]
        return value


def _move(table: dict[Path, T], old: Path, new: Path) -> None:
    if old in table:
        table[new] = table[old]
