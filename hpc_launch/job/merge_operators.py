"""Merge operators: key prefixes and suffixes with which a layer changes a list or mapping of the layers below.

By default a layer replaces a list and merges a mapping by key. `modules+` appends items to those of the layers below,
`+modules` prepends them, `modules-` removes items (or keys of a mapping), and `env=` replaces a whole mapping. Only
keys that a type defines take operators; user-chosen names, such as variables, do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import KeyPath, Source
from hpc_launch.job.type_hints import fields_of, members

OperatorKind = Literal["append", "prepend", "remove", "replace"]
SUFFIXES: Mapping[str, OperatorKind] = {"+": "append", "-": "remove", "=": "replace"}


class MergeOperator(NamedTuple):
    """One key with an operator: its kind, and for `remove` the items or keys to remove."""

    kind: OperatorKind
    place: Place | None
    removed: tuple[Any, ...] = ()


class ParsedOperators(Struct, frozen=True):
    """Data with plain keys, and the operators by key path."""

    data: dict[str, Any]
    places: dict[KeyPath, Place]
    key_places: dict[KeyPath, Place]
    written: dict[KeyPath, str]
    operators: dict[KeyPath, tuple[MergeOperator, ...]]


def parse_operators(source: Source, types: Mapping[KeyPath, type[Struct]]) -> tuple[ParsedOperators, list[Finding]]:
    """Replace every key that has an operator with its plain name.

    `types` maps a path to its class, with `()` for the root. HL021 if the operator's value has the wrong type, or a key
    is given twice.
    """
    parser = _OperatorParser(source, types)
    data = parser.mapping(source.data, _struct(types.get(())), (), ())
    if not parser.operators:
        parsed = ParsedOperators(data, dict(source.places), dict(source.key_places), dict(source.written), {})
    else:
        parsed = ParsedOperators(
            data, parser.places, parser.key_places, parser.written, {at: tuple(m) for at, m in parser.operators.items()}
        )
    return parsed, parser.findings


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


def _struct(type_: Any) -> type[Struct] | None:
    if type_ is None:
        return None
    return next((member.kind for member in members(type_) if member.is_struct), None)


class _OperatorParser:
    def __init__(self, source: Source, types: Mapping[KeyPath, type[Struct]]) -> None:
        self.source = source
        self.types = types
        self.places: dict[KeyPath, Place] = {}
        self.key_places: dict[KeyPath, Place] = {}
        self.written: dict[KeyPath, str] = {}
        self.operators: dict[KeyPath, list[MergeOperator]] = {}
        self.findings: list[Finding] = []
        self._enter((), ())

    def _enter(self, old: KeyPath, new: KeyPath) -> None:
        source = self.source
        if old in source.places:
            self.places[new] = source.places[old]
        if old in source.key_places:
            self.key_places[new] = source.key_places[old]
        if old in source.written:
            self.written[new] = source.written[old]

    def mapping(
        self, data: Mapping[str, Any], type_: type[Struct] | None, old: KeyPath, new: KeyPath
    ) -> dict[str, Any]:
        fields = fields_of(type_) if type_ is not None else {}
        result: dict[str, Any] = {}
        for key, child in data.items():
            operator_key = parse_key(key, fields) if fields else None
            name = operator_key[0] if operator_key else key
            old_path, new_path = (*old, key), (*new, name)
            if operator_key is not None:
                if not self.add_operator(operator_key[1], child, old_path, new_path) or operator_key[1] == "remove":
                    continue
                if name in data or name in result:
                    self.report(
                        old_path, f"`{name}` is set here and also changed by `{key}`", "remove one of the two keys"
                    )
                    continue
            inner = fields[name].type if name in fields else None
            if operator_key is None and isinstance(child, list) and inner is not None and _extends_by_default(inner):
                self.operators.setdefault(new_path, []).append(
                    MergeOperator("append", self.source.key_places.get(old_path))
                )
            result[name] = self.value(child, inner, old_path, new_path)
        return result

    def value(self, value: Any, type_: Any, old: KeyPath, new: KeyPath) -> Any:
        self._enter(old, new)
        if new in self.types:
            type_ = self.types[new]
        if isinstance(value, Mapping):
            struct = _struct(type_)
            if struct is None and type_ is not None:
                inner = next((one.args[1] for one in members(type_) if one.kind is dict and one.args), None)
                return {key: self.value(child, inner, (*old, key), (*new, key)) for key, child in value.items()}
            return self.mapping(value, struct, old, new)
        if isinstance(value, list):
            inner = None
            if type_ is not None:
                inner = next((one.args[0] for one in members(type_) if one.kind is list and one.args), None)
            return [self.value(child, inner, (*old, at), (*new, at)) for at, child in enumerate(value)]
        return value

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
