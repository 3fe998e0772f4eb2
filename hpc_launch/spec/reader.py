"""Data against a `msgspec.Struct` type: all faults at once, each with its place, and the typed value if there are none.

msgspec's own conversion stops at the first fault and knows no places, so this is a walk of our own over the type
hints. It knows Struct, dict[str, T], list[T], tuple[T, ...], Literal, Annotated with Meta, unions, Any, str, int,
float, bool and None.

- A field of type `str` takes numbers and true or false as they were written: `1.10` stays `1.10`.
- `Annotated[int, Meta(extra={"unit": "time"})]` takes the forms of a unit: `time`, `duration` (both give seconds)
  or `memory` (MiB). See `spec.units`. Limits beside a unit are in seconds or MiB.
- An empty value (null) of a field that has a default and takes no null means that default. In a `dict[str, T]` it
  means that the key is not there.
- Short forms: a Struct may have a classmethod `__short_forms__(value) -> dict[str, object] | None`. It is asked about
  any value that is neither null nor a mapping (text, number, true, false, list) and that no other member of a union
  takes. It returns the mapping meant, in which a value handed through unchanged keeps its place, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from hpc_launch.base.findings import Finding, Place
from hpc_launch.spec.document import Document, Path, Source
from hpc_launch.spec.limits import broken_limit
from hpc_launch.spec.reader_messages import (
    about,
    about_metas,
    expected,
    label,
    mending,
    nearest,
    shown,
    what_for,
    where_it_belongs,
)
from hpc_launch.spec.shell_text import visible
from hpc_launch.spec.short_forms import long_form, takes
from hpc_launch.spec.type_hints import Member, fields_of, members, nullable
from hpc_launch.spec.units import UNITS

S = TypeVar("S", bound=Struct)

_BAD: Any = object()


def read(source: Source, type_: type[S], *, path: Path = ()) -> tuple[S | None, list[Finding]]:
    """The data at `path` as a `type_`, or None when a finding is an error. Findings come in the order of the file.

    HL010 unknown key, HL011 wrong type, HL012 missing key, HL013 out of range or not one of the choices.
    """
    value, findings = _walked(source, type_, path, partial=False)
    return (None if value is _BAD or findings else value), findings


def check(source: Source, type_: type[Struct], *, path: Path = ()) -> list[Finding]:
    """The findings for one layer of several: as `read`, but keys may be missing and null always may stand."""
    return _walked(source, type_, path, partial=True)[1]


def _walked(source: Source, type_: type[Struct], path: Path, *, partial: bool) -> tuple[Any, list[Finding]]:
    walk = _StructReader(long_form(source, type_, path=path), type_, partial=partial)
    data: Any = walk.source.data
    for key in path:
        data = data[key]
    value = walk.struct(type_, data, path)
    return value, sorted(walk.findings, key=_by_place)


def _by_place(finding: Finding) -> tuple[str, int, int]:
    place = finding.place or Place("")
    return place.file, place.line or 0, place.column or 0


class _StructReader:
    """One walk over data in its long form, gathering findings. A value with a fault comes back as `_BAD`."""

    def __init__(self, source: Document, type_: type[Struct], *, partial: bool) -> None:
        self.source = source
        self.root = type_
        self.partial = partial
        self.findings: list[Finding] = []

    def fault(self, code: str, message: str, path: Path, hint: str | None = None, *, at_key: bool = False) -> Any:
        place = self.source.key_places.get(path) if at_key else None
        known = (self.source.places.get(path[:end]) for end in range(len(path), -1, -1))
        place = place or next(filter(None, known), None)
        self.findings.append(Finding(code, message, place, hint or what_for(self.root, path)))
        return _BAD

    def struct(self, type_: type[Struct], value: Any, path: Path) -> Any:
        if not isinstance(value, Mapping):
            return self.wrong(members(type_), value, path)
        fields = fields_of(type_)
        values: dict[str, Any] = {}
        for key, child in value.items():
            here = (*path, key)
            if key not in fields:
                self.unknown(key, type_, here)
            elif child is not None or nullable(fields[key].type):
                values[fields[key].name] = self.value(fields[key].type, child, here)
        for key, info in fields.items():
            if info.required and not self.partial and info.name not in values:
                here = (*path, key)
                self.fault("HL012", f"`{label(here)}` is missing", here, about(info.type, key), at_key=True)
                values[info.name] = _BAD
        return _BAD if self.partial or any(child is _BAD for child in values.values()) else type_(**values)

    def value(self, annotation: Any, value: Any, path: Path) -> Any:
        alternatives = members(annotation)
        text = self.written(value, path)
        fitting = [member for member in alternatives if takes(member, value)]
        if len(fitting) < len(alternatives) or len(fitting) > 1:
            # A text of a form of its own beside other types: one of another form is not meant for it.
            fitting = [member for member in fitting if member.form is None or broken_limit(member, text) is None]
        if not fitting and text is not None:
            # `Literal["1", "2"]` takes 1 as written, as `str` does.
            fitting = [member for member in alternatives if member.kind is Literal and text in member.args]
            value = text if fitting else value
        if not fitting:
            return self.wrong(alternatives, value, path)
        # The closest one first: a choice, then the very type, and text last, because it takes every scalar.
        member = min(
            fitting, key=lambda one: (one.kind is Any, one.kind is str, one.kind not in (Literal, type(value)))
        )
        return self.taken(member, value, path)

    def taken(self, member: Member, value: Any, path: Path) -> Any:
        """`value`, of a YAML type that `member` takes, converted and held against the limits."""
        kind, args, metas = member
        if kind is Any or kind is Literal or value is None:
            return value
        if member.is_struct:
            return self.struct(kind, value, path)
        result: Any
        if kind is dict:
            result = self.mapping(args, value, path)
        elif kind in (list, tuple):
            result = self.items(kind, args, value, path)
        elif member.unit is not None:
            try:
                result = UNITS[member.unit].parse(value if isinstance(value, int) else str(self.written(value, path)))
            except ValueError as error:
                return self.fault("HL011", f"`{label(path)}`: {error}", path)
        else:
            result = self.written(value, path) if kind is str else kind(value)
        broken = None if result is _BAD else broken_limit(member, result)
        if broken is not None:
            message = f"`{label(path)}` {broken}, not {shown(value)}"
            return self.fault("HL013", message, path, about_metas(metas))
        return result

    def mapping(self, args: tuple[Any, ...], value: Mapping[str, Any], path: Path) -> Any:
        of_keys, of_values = args or (str, Any)
        result = {}
        for key, child in value.items():
            here = (*path, key)
            for broken in filter(None, (broken_limit(member, key) for member in members(of_keys))):
                result[key] = self.fault("HL013", f"the key `{label(here)}` {broken}", here, at_key=True)
            if child is not None or nullable(of_values):
                got = self.value(of_values, child, here)
                result[key] = _BAD if result.get(key) is _BAD else got
        return _BAD if any(child is _BAD for child in result.values()) else result

    def items(self, kind: Any, args: tuple[Any, ...], value: list[Any], path: Path) -> Any:
        fixed = kind is tuple and args[-1] is not ...
        if fixed and len(value) != len(args):
            return self.fault("HL013", f"`{label(path)}` must have {len(args)} items, not {len(value)}", path)
        types = args if fixed else (args or (Any,))[:1] * len(value)
        result = [self.value(types[at], child, (*path, at)) for at, child in enumerate(value)]
        return _BAD if any(child is _BAD for child in result) else kind(result)

    def written(self, value: Any, path: Path) -> str | None:
        """The text of a scalar as it was written; None for what is no scalar, or is empty."""
        if isinstance(value, str):
            return value
        if not isinstance(value, (int, float)):
            return None
        return self.source.written.get(path, str(value).lower() if isinstance(value, bool) else str(value))

    def unknown(self, key: str, type_: type[Struct], path: Path) -> None:
        inside = f" in `{label(path[:-1])}`" if len(path) > 1 else ""
        hint = where_it_belongs(key, type_, self.root)
        self.fault("HL010", f"unknown key `{visible(key)}`{inside}", path, hint, at_key=True)

    def wrong(self, alternatives: tuple[Member, ...], value: Any, path: Path) -> Any:
        what = f"`{label(path)}`" if path else "the file"
        found = shown(value, self.source.written.get(path))
        message = f"{what} must be {expected(alternatives)}, not {found}"
        choices = [str(choice) for member in alternatives if member.kind is Literal for choice in member.args]
        if choices and isinstance(value, (str, int, float)):
            near = nearest(str(value), choices)
            return self.fault("HL013", message, path, f"did you mean `{near}`?" if near else None)
        return self.fault("HL011", message, path, mending({member.kind for member in alternatives}, value))
