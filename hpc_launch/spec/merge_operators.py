"""How a layer changes a list or mapping of the layers below it: by a mark at the key.

A layer replaces a list and merges a mapping key by key. A mark says otherwise: `modules+` puts items behind those of
the layers below, `+modules` before them, `modules-` takes items (or keys of a mapping) away, and `env=` replaces a
whole mapping. Only keys that a type knows carry marks; names of the user's own choice, such as variables, never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from hpc_launch.base.findings import Finding, Place
from hpc_launch.spec.document import Path, Source
from hpc_launch.spec.type_hints import fields_of, members

How = Literal["behind", "before", "without", "whole"]
ENDINGS: Mapping[str, How] = {"+": "behind", "-": "without", "=": "whole"}


class Mark(NamedTuple):
    """One marked key: how it changes what is below it, and for `without` the items or keys to take away."""

    how: How
    place: Place | None
    gone: tuple[Any, ...] = ()


class Marked(Struct, frozen=True):
    """Data without its marks, and the marks by the path of the bare key."""

    data: dict[str, Any]
    places: dict[Path, Place]
    key_places: dict[Path, Place]
    written: dict[Path, str]
    marks: dict[Path, tuple[Mark, ...]]


def without_marks(source: Source, types: Mapping[Path, type[Struct]]) -> tuple[Marked, list[Finding]]:
    """`source` with every marked key under its bare name. `types`: which class stands where, `()` for the whole.

    HL021 where a mark is put at what is neither list nor mapping, or a key stands there twice.
    """
    walk = _OperatorWalk(source, types)
    data = walk.mapping(source.data, _struct(types.get(())), (), ())
    if not walk.marks:
        kept = Marked(data, dict(source.places), dict(source.key_places), dict(source.written), {})
    else:
        kept = Marked(data, walk.places, walk.key_places, walk.written, {at: tuple(m) for at, m in walk.marks.items()})
    return kept, walk.findings


def bare(key: str, known: Iterable[str]) -> tuple[str, How] | None:
    """The key and the mark of `key`, or None where it is no marked key of `known`."""
    if key in known:
        return None
    if key.startswith("+") and key[1:] in known:
        return key[1:], "before"
    if key[-1:] in ENDINGS and key[:-1] in known:
        return key[:-1], ENDINGS[key[-1]]
    return None


def _adds(type_: Any) -> bool:
    """Whether a list of this field adds to those of the layers below even without a mark."""
    return any(meta.extra and meta.extra.get("merge") == "behind" for one in members(type_) for meta in one.metas)


def _struct(type_: Any) -> type[Struct] | None:
    if type_ is None:
        return None
    return next((member.kind for member in members(type_) if member.is_struct), None)


class _OperatorWalk:
    def __init__(self, source: Source, types: Mapping[Path, type[Struct]]) -> None:
        self.source = source
        self.types = types
        self.places: dict[Path, Place] = {}
        self.key_places: dict[Path, Place] = {}
        self.written: dict[Path, str] = {}
        self.marks: dict[Path, list[Mark]] = {}
        self.findings: list[Finding] = []
        self._enter((), ())

    def _enter(self, old: Path, new: Path) -> None:
        source = self.source
        if old in source.places:
            self.places[new] = source.places[old]
        if old in source.key_places:
            self.key_places[new] = source.key_places[old]
        if old in source.written:
            self.written[new] = source.written[old]

    def mapping(self, data: Mapping[str, Any], type_: type[Struct] | None, old: Path, new: Path) -> dict[str, Any]:
        fields = fields_of(type_) if type_ is not None else {}
        result: dict[str, Any] = {}
        for key, child in data.items():
            marked = bare(key, fields) if fields else None
            name = marked[0] if marked else key
            here, there = (*old, key), (*new, name)
            if marked is not None:
                if not self.mark(marked[1], child, here, there) or marked[1] == "without":
                    continue
                if name in data or name in result:
                    self.fault(here, f"`{name}` is set here and changed by `{key}`", "keep one of the two")
                    continue
            inner = fields[name].type if name in fields else None
            if marked is None and isinstance(child, list) and inner is not None and _adds(inner):
                self.marks.setdefault(there, []).append(Mark("behind", self.source.key_places.get(here)))
            result[name] = self.value(child, inner, here, there)
        return result

    def value(self, value: Any, type_: Any, old: Path, new: Path) -> Any:
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

    def mark(self, how: How, value: Any, old: Path, new: Path) -> bool:
        """Note a mark; whether its value is of a kind that it can be put at."""
        key = str(old[-1])
        if how == "whole" and not isinstance(value, list | Mapping):
            self.fault(old, f"`{key}` takes a list or a mapping", f"`{new[-1]}:` alone sets a value")
            return False
        if how != "whole" and not isinstance(value, list):
            self.fault(old, f"`{key}` takes a list", "write `[ITEM, …]`, even for one item")
            return False
        place = self.source.key_places.get(old)
        gone = tuple(value) if how == "without" else ()
        self.marks.setdefault(new, []).append(Mark(how, place, gone))
        return True

    def fault(self, path: Path, message: str, hint: str) -> None:
        place = self.source.key_places.get(path) or self.source.places.get(path)
        self.findings.append(Finding("HL021", message, place, hint))
