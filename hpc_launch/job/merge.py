"""Merge layers: later layers win. Mappings are merged by key, everything else is replaced, null removes a value.

Merge operators (`key+`, `key-`, `key=`) extend a list, remove items from it or replace a whole mapping. Every value
keeps the layer and position that set it, so that findings and `explain` can name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.job.document import KeyPath, Origin, Source
from hpc_launch.job.reader import LongForm
from hpc_launch.job.type_hints import fields_of, members

V = TypeVar("V")
OperatorKind = Literal["append", "prepend", "remove", "replace"]
SUFFIXES: Mapping[str, OperatorKind] = {"+": "append", "-": "remove", "=": "replace"}


class MergeOperator(NamedTuple):
    """One key with an operator: its kind, and for `remove` the items or keys to remove."""

    kind: OperatorKind
    place: Place | None
    removed: tuple[Any, ...] = ()


class Layer(Source, frozen=True, kw_only=True):
    """Data of one source, with the name that origins show."""

    name: str
    operators: dict[KeyPath, tuple[MergeOperator, ...]] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    """Origins of the values, if this layer is itself the result of a merge."""


def parse_operators(name: str, source: Source, types: Mapping[KeyPath, type[Struct]]) -> tuple[Layer, list[Finding]]:
    """A source as a layer in its long form, in which every key with an operator has its plain name.

    `types` maps a path to its class, with `()` for the root. HL021 if the operator's value has the wrong type, or a key
    is given twice.
    """
    parser = _OperatorParser(source, types)
    long = parser.document()
    operators = {path: tuple(found) for path, found in parser.operators.items()}
    layer = Layer(long.data, long.places, long.key_places, long.written, name=name, operators=operators)
    return layer, parser.findings


def parse_key(key: str, known: Iterable[str]) -> tuple[str, OperatorKind] | None:
    """Split `key` into the plain key and its operator, or return None if it is not one of `known` with an operator."""
    if key in known:
        return None
    if key.startswith("+") and key[1:] in known:
        return key[1:], "prepend"
    if key[-1:] in SUFFIXES and key[:-1] in known:
        return key[:-1], SUFFIXES[key[-1]]
    return None


def _extends_by_default(type_: Any) -> bool:
    """Whether a list of this field extends those of the layers below, even without an operator."""
    return any(meta.extra and meta.extra.get("merge") == "append" for one in members(type_) for meta in one.metas)


class _OperatorParser(LongForm):
    def __init__(self, source: Source, types: Mapping[KeyPath, type[Struct]]) -> None:
        super().__init__(source, types)
        self.operators: dict[KeyPath, list[MergeOperator]] = {}
        self.findings: list[Finding] = []

    def mapping(
        self, data: Mapping[str, Any], struct: type[Struct] | None, value_type: Any, old: KeyPath, new: KeyPath
    ) -> dict[str, Any]:
        """The mapping with the plain names of its keys, whose operators are recorded."""
        if struct is None:
            return super().mapping(data, struct, value_type, old, new)
        fields = fields_of(struct)
        result: dict[str, Any] = {}
        for key, child in data.items():
            operator_key = parse_key(key, fields)
            name = operator_key[0] if operator_key else key
            old_path, new_path = (*old, key), (*new, name)
            if operator_key is not None:
                if not self.add_operator(operator_key[1], child, old_path, new_path) or operator_key[1] == "remove":
                    continue
                if name in data or name in result:
                    message = f"`{name}` is set here and also changed by `{key}`"
                    self.report(old_path, message, "remove one of the two keys")
                    continue
            inner = fields[name].type if name in fields else value_type
            if operator_key is None and isinstance(child, list) and _extends_by_default(inner):
                place = self.source.key_places.get(old_path)
                self.operators.setdefault(new_path, []).append(MergeOperator("append", place))
            result[name] = self.value(child, inner, old_path, new_path)
        return result

    def add_operator(self, kind: OperatorKind, value: Any, old: KeyPath, new: KeyPath) -> bool:
        """Record an operator. Returns whether its value has a suitable type."""
        key = str(old[-1])
        if kind == "replace" and not isinstance(value, list | Mapping):
            self.report(old, f"`{key}` requires a list or a mapping", f"use `{new[-1]}:` to set a single value")
            return False
        if kind != "replace" and not isinstance(value, list):
            self.report(old, f"`{key}` requires a list", "write `[ITEM, …]`, even for a single item")
            return False
        place = self.source.key_places.get(old)
        removed = tuple(value) if kind == "remove" else ()
        self.operators.setdefault(new, []).append(MergeOperator(kind, place, removed))
        return True

    def report(self, path: KeyPath, message: str, hint: str) -> None:
        place = self.source.key_places.get(path) or self.source.places.get(path)
        self.findings.append(Finding(FindingCode.INVALID_MERGE_OPERATOR, message, place, hint))


class Merged(Source, frozen=True):
    """The merged values of all layers. `origins` and `places` have the same paths as `data`."""

    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    operators: dict[KeyPath, tuple[MergeOperator, ...]] = field(default_factory=dict)
    """Operators that had nothing to apply to. They take effect if this result becomes a layer itself."""

    def origin(self, *path: str | int) -> Origin:
        """The origin of a value, or of the closest parent that has one, or `default`."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return Origin("default")


def sublayer(name: str, source: Source, *path: str) -> Layer:
    """The mapping at `path` as a separate layer, empty if there is none."""
    data = _value_at(source.data, path)
    if not isinstance(data, dict):
        return Layer({}, name=name)

    def below(table: Mapping[KeyPath, V]) -> dict[KeyPath, V]:
        return {key[len(path) :]: value for key, value in table.items() if key[: len(path)] == path}

    layer = Layer(data, below(source.places), below(source.key_places), below(source.written), name=name)
    if not isinstance(source, Merged):
        return layer
    return replace(layer, operators=below(source.operators), origins=below(source.origins))


def merge(layers: Sequence[Layer]) -> Merged:
    """Merge layers, lowest first."""
    merged = Merged({})
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
        current, extends = into.get(key), kinds & {"append", "prepend"} and "replace" not in kinds
        if isinstance(value, list) and isinstance(current, list) and extends:
            _extend_list(merged, layer, current, value, key_path, append="append" in kinds)
            continue
        if key in into:
            _drop_path(merged, key_path)
        for entry in [entry for entry in merged.operators if entry[: len(key_path)] == key_path]:
            del merged.operators[entry]
        into[key] = deepcopy(value)
        _record_origins(merged, layer, value, key_path, key_path)


def _extend_list(
    merged: Merged, layer: Layer, current: list[Any], value: list[Any], path: KeyPath, *, append: bool
) -> None:
    """Add the items of `value` after those of `current`, or before them."""
    first = len(current) if append else 0
    if not append:
        _move(merged, path, {at: at + len(value) for at in range(len(current))})
    current[first:first] = deepcopy(value)
    for at, child in enumerate(value):
        _record_origins(merged, layer, child, (*path, at), (*path, first + at))


def _unapplied_operators(merged: Merged, layer: Layer) -> dict[KeyPath, tuple[MergeOperator, ...]]:
    """The layer's operators whose value no lower layer has set."""
    unapplied = {}
    for path, operators in layer.operators.items():
        if _value_at(merged.data, path) is None or path in merged.operators:
            unapplied[path] = (*merged.operators.get(path, ()), *operators)
    return unapplied


def _value_at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _remove_items(merged: Merged, layer: Layer) -> None:
    """Apply the layer's removals to the lists and mappings below it."""
    for path, operators in layer.operators.items():
        removed = [item for operator in operators for item in operator.removed]
        current = _value_at(merged.data, path)
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


def _tables(merged: Merged) -> tuple[dict[KeyPath, Any], ...]:
    return merged.origins, merged.places, merged.key_places, merged.written


def _drop_path(merged: Merged, path: KeyPath) -> None:
    length = len(path)
    for table in _tables(merged):
        for entry in [entry for entry in table if entry[:length] == path]:
            del table[entry]


def _record_origins(merged: Merged, layer: Layer, value: Any, old: KeyPath, new: KeyPath) -> None:
    """Record the origin and positions of a value at `old` in the layer, with its children, as those of `new`."""
    merged.origins[new] = layer.origins.get(old) or Origin(layer.name, layer.places.get(old))
    tables: tuple[Mapping[KeyPath, Any], ...] = (layer.places, layer.key_places, layer.written)
    for table, result in zip(tables, _tables(merged)[1:], strict=True):
        if old in table:
            result[new] = table[old]
    children = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        _record_origins(merged, layer, child, (*old, key), (*new, key))
