"""Merge layers: later layers win. Mappings are merged by key, everything else is replaced, null removes a value.

Merge operators (`spec.merge_operators`) extend a list, remove items from it or replace a whole mapping. Every value
keeps the layer and position that set it, so that findings and `explain` can name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpc_launch.base.findings import Place
from hpc_launch.job.document import KeyPath
from hpc_launch.job.merge_operators import MergeOperator
from hpc_launch.job.origin import Origin


class Layer(Struct, frozen=True):
    """Data of one source, with the positions of its values and keys."""

    name: str
    data: Mapping[str, Any]
    places: Mapping[KeyPath, Place]
    key_places: Mapping[KeyPath, Place] = {}
    written: Mapping[KeyPath, str] = {}
    """Original text of each scalar in the file."""
    operators: Mapping[KeyPath, tuple[MergeOperator, ...]] = {}
    origins: Mapping[KeyPath, Origin] = {}
    """Origins of the values, if this layer is itself the result of a merge."""


class Merged(Struct, frozen=True):
    """The merged values of all layers. `origins` and `places` have the same paths as `data`."""

    data: dict[str, Any]
    origins: dict[KeyPath, Origin]
    places: dict[KeyPath, Place]
    key_places: dict[KeyPath, Place]
    written: dict[KeyPath, str]
    operators: dict[KeyPath, tuple[MergeOperator, ...]] = {}
    """Operators that had nothing to apply to. They take effect if this result becomes a layer itself."""

    def origin(self, *path: str | int) -> Origin:
        """The origin of a value, or of the closest parent that has one, or `default`."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return Origin("default")


def merge(layers: Sequence[Layer]) -> Merged:
    """Merge layers, lowest first."""
    merged = Merged({}, {}, {}, {}, {}, {})
    for layer in layers:
        if () in layer.places:
            merged.places[()] = layer.places[()]
        unapplied = _unapplied_operators(merged, layer)
        _remove_items(merged, layer)
        _merge_mapping(merged, layer, merged.data, layer.data, ())
        merged.operators.update(unapplied)
    return merged


def _merge_mapping(merged: Merged, layer: Layer, into: dict[str, Any], data: Mapping[str, Any], path: KeyPath) -> None:
    for key, value in data.items():
        key_path = (*path, key)
        kinds = {operator.kind for operator in layer.operators.get(key_path, ())}
        if isinstance(value, Mapping) and isinstance(into.get(key), dict) and "replace" not in kinds:
            _merge_mapping(merged, layer, into[key], value, key_path)
            continue
        current = into.get(key)
        if (
            isinstance(value, list)
            and isinstance(current, list)
            and kinds & {"append", "prepend"}
            and "replace" not in kinds
        ):
            _extend_list(merged, layer, current, value, key_path, append="append" in kinds)
            continue
        if key in into:
            _drop_path(merged, key_path)
        for entry in [entry for entry in merged.operators if entry[: len(key_path)] == key_path]:
            del merged.operators[entry]
        into[key] = _copy(value)
        _record_origins(merged, layer, value, key_path, key_path)


def _extend_list(
    merged: Merged, layer: Layer, current: list[Any], value: list[Any], path: KeyPath, *, append: bool
) -> None:
    """Add the items of `value` after those of `current`, or before them."""
    first = len(current) if append else 0
    if not append:
        _move(merged, path, {at: at + len(value) for at in range(len(current))})
    current[first:first] = _copy(value)
    for at, child in enumerate(value):
        _record_origins(merged, layer, child, (*path, at), (*path, first + at))


def _unapplied_operators(merged: Merged, layer: Layer) -> dict[KeyPath, tuple[MergeOperator, ...]]:
    """The layer's operators whose value no lower layer has set."""
    unapplied = {}
    for path, operators in layer.operators.items():
        current: Any = merged.data
        for key in path:
            current = current.get(key) if isinstance(current, dict) else None
        if current is None or path in merged.operators:
            unapplied[path] = (*merged.operators.get(path, ()), *operators)
    return unapplied


def _remove_items(merged: Merged, layer: Layer) -> None:
    """Apply the layer's removals to the lists and mappings below it."""
    for path, operators in layer.operators.items():
        removed = [item for operator in operators for item in operator.removed]
        current: Any = merged.data
        for key in path:
            current = current.get(key) if isinstance(current, dict) else None
        if isinstance(current, dict):
            for key in [key for key in removed if key in current]:
                del current[key]
                _drop_path(merged, (*path, key))
        elif isinstance(current, list) and removed:
            kept = [at for at, item in enumerate(current) if item not in removed]
            _move(merged, path, {at: new for new, at in enumerate(kept)})
            current[:] = [current[at] for at in kept]


def _move(merged: Merged, path: KeyPath, places: Mapping[int, int]) -> None:
    """Move list items to their new indices in all tables, and drop those without one."""
    length = len(path)
    for table in _tables(merged):
        children = {entry: table.pop(entry) for entry in list(table) if entry[:length] == path and len(entry) > length}
        for entry, value in children.items():
            at = entry[length]
            if isinstance(at, int) and at in places:
                table[(*path, places[at], *entry[length + 1 :])] = value


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_copy(child) for child in value]
    return value


def _tables(merged: Merged) -> tuple[dict[KeyPath, Any], ...]:
    return merged.origins, merged.places, merged.key_places, merged.written


def _drop_path(merged: Merged, path: KeyPath) -> None:
    length = len(path)
    for table in _tables(merged):
        for entry in [entry for entry in table if entry[:length] == path]:
            del table[entry]


def _record_origins(merged: Merged, layer: Layer, value: Any, old: KeyPath, new: KeyPath) -> None:
    """Record the origin and positions of a value at `old` in the layer, with its children, as those of `new`."""
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
        _record_origins(merged, layer, child, (*old, key), (*new, key))
