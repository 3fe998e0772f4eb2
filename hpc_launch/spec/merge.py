"""The merge of layers: later ones win, mappings are merged key by key, all else is replaced, null takes away.

Every value keeps the place and layer that set it, so that a finding and `explain` can name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpc_launch.base.findings import Place
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


class Merged(Struct, frozen=True):
    """The values of all layers together. `origins` and `places` have the same paths as `data`."""

    data: dict[str, Any]
    origins: dict[Path, Origin]
    places: dict[Path, Place]
    key_places: dict[Path, Place]
    written: dict[Path, str]

    def origin(self, *path: str | int) -> Origin:
        """The origin of a value, else of what holds it, else `default`."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return Origin("default")


def merge(layers: Sequence[Layer]) -> Merged:
    """Put layers together, the lowest first."""
    merged = Merged({}, {}, {}, {}, {})
    for layer in layers:
        if () in layer.places:
            merged.places[()] = layer.places[()]
        _merge_mapping(merged, layer, merged.data, layer.data, ())
    return merged


def _merge_mapping(merged: Merged, layer: Layer, into: dict[str, Any], data: Mapping[str, Any], path: Path) -> None:
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge_mapping(merged, layer, into[key], value, here)
            continue
        _forget(merged, here)
        into[key] = _copy(value)
        _remember(merged, layer, value, here)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_copy(child) for child in value]
    return value


def _forget(merged: Merged, path: Path) -> None:
    length = len(path)
    for table in (merged.origins, merged.places, merged.key_places, merged.written):
        for known in [known for known in table if known[:length] == path]:
            del table[known]


def _remember(merged: Merged, layer: Layer, value: Any, path: Path) -> None:
    place = layer.places.get(path)
    merged.origins[path] = Origin(layer.name, place)
    if place is not None:
        merged.places[path] = place
    if path in layer.key_places:
        merged.key_places[path] = layer.key_places[path]
    if path in layer.written:
        merged.written[path] = layer.written[path]
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        _remember(merged, layer, child, (*path, key))
