"""The merge of layers: later ones win, mappings are merged key by key, all else is replaced, null takes away.

Merge operators (`spec.merge_operators`) add to a list, remove from it or replace a whole mapping. Every value keeps the
place and layer that set it, so that a finding and `explain` can name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpc_launch.base.findings import Place
from hpc_launch.spec.merge_operators import Mark
from hpc_launch.spec.origin import Origin

Path = tuple[str | int, ...]


class Layer(Struct, frozen=True):
    """Data of one source, with the places of its values and keys."""

    name: str
    data: Mapping[str, Any]
    places: Mapping[Path, Place]
    key_places: Mapping[Path, Place] = {}
    written: Mapping[Path, str] = {}
    """The text of each scalar as the file has it."""
    marks: Mapping[Path, tuple[Mark, ...]] = {}
    origins: Mapping[Path, Origin] = {}
    """Of a layer that was itself put together: where each of its values is from."""


class Merged(Struct, frozen=True):
    """The values of all layers together. `origins` and `places` have the same paths as `data`."""

    data: dict[str, Any]
    origins: dict[Path, Origin]
    places: dict[Path, Place]
    key_places: dict[Path, Place]
    written: dict[Path, str]
    marks: dict[Path, tuple[Mark, ...]] = {}
    """Marks that had nothing below them: they count again where this is a layer itself."""

    def origin(self, *path: str | int) -> Origin:
        """The origin of a value, else of what holds it, else `default`."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return Origin("default")


def merge(layers: Sequence[Layer]) -> Merged:
    """Put layers together, the lowest first."""
    merged = Merged({}, {}, {}, {}, {}, {})
    for layer in layers:
        if () in layer.places:
            merged.places[()] = layer.places[()]
        left = _left_marks(merged, layer)
        _take_away(merged, layer)
        _merge_mapping(merged, layer, merged.data, layer.data, ())
        merged.marks.update(left)
    return merged


def _merge_mapping(merged: Merged, layer: Layer, into: dict[str, Any], data: Mapping[str, Any], path: Path) -> None:
    for key, value in data.items():
        here = (*path, key)
        how = {mark.how for mark in layer.marks.get(here, ())}
        if isinstance(value, Mapping) and isinstance(into.get(key), dict) and "whole" not in how:
            _merge_mapping(merged, layer, into[key], value, here)
            continue
        below = into.get(key)
        if isinstance(value, list) and isinstance(below, list) and how & {"behind", "before"} and "whole" not in how:
            _join(merged, layer, below, value, here, behind="behind" in how)
            continue
        if key in into:
            _forget(merged, here)
        for known in [known for known in merged.marks if known[: len(here)] == here]:
            del merged.marks[known]
        into[key] = _copy(value)
        _remember(merged, layer, value, here, here)


def _join(merged: Merged, layer: Layer, below: list[Any], value: list[Any], path: Path, *, behind: bool) -> None:
    """Put the items of `value` behind those of `below`, or before them."""
    first = len(below) if behind else 0
    if not behind:
        _move(merged, path, {at: at + len(value) for at in range(len(below))})
    below[first:first] = _copy(value)
    for at, child in enumerate(value):
        _remember(merged, layer, child, (*path, at), (*path, first + at))


def _left_marks(merged: Merged, layer: Layer) -> dict[Path, tuple[Mark, ...]]:
    """The layer's marks for what no layer below it has said by itself."""
    left = {}
    for path, marks in layer.marks.items():
        held: Any = merged.data
        for key in path:
            held = held.get(key) if isinstance(held, dict) else None
        if held is None or path in merged.marks:
            left[path] = (*merged.marks.get(path, ()), *marks)
    return left


def _take_away(merged: Merged, layer: Layer) -> None:
    """What the layer takes from the lists and mappings below it."""
    for path, marks in layer.marks.items():
        gone = [item for mark in marks for item in mark.gone]
        held: Any = merged.data
        for key in path:
            held = held.get(key) if isinstance(held, dict) else None
        if isinstance(held, dict):
            for key in [key for key in gone if key in held]:
                del held[key]
                _forget(merged, (*path, key))
        elif isinstance(held, list) and gone:
            kept = [at for at, item in enumerate(held) if item not in gone]
            _move(merged, path, {at: new for new, at in enumerate(kept)})
            held[:] = [held[at] for at in kept]


def _move(merged: Merged, path: Path, places: Mapping[int, int]) -> None:
    """Give the items of a list their new positions in all tables; one without a new position is forgotten."""
    length = len(path)
    for table in _tables(merged):
        inside = {known: table.pop(known) for known in list(table) if known[:length] == path and len(known) > length}
        for known, value in inside.items():
            at = known[length]
            if isinstance(at, int) and at in places:
                table[(*path, places[at], *known[length + 1 :])] = value


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_copy(child) for child in value]
    return value


def _tables(merged: Merged) -> tuple[dict[Path, Any], ...]:
    return merged.origins, merged.places, merged.key_places, merged.written


def _forget(merged: Merged, path: Path) -> None:
    length = len(path)
    for table in _tables(merged):
        for known in [known for known in table if known[:length] == path]:
            del table[known]


def _remember(merged: Merged, layer: Layer, value: Any, old: Path, new: Path) -> None:
    """Enter a value that stands at `old` in the layer, and all that is in it, at `new`."""
    place = layer.places.get(old)
    merged.origins[new] = layer.origins.get(old) or Origin(layer.name, place)
    if place is not None:
        merged.places[new] = place
    if old in layer.key_places:
        merged.key_places[new] = layer.key_places[old]
    if old in layer.written:
        merged.written[new] = layer.written[old]
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        _remember(merged, layer, child, (*old, key), (*new, key))
