"""Validate data against a `msgspec.Struct` type: report all errors with their positions, or return the typed value.

msgspec's own conversion stops at the first error and knows no positions, so we walk the type hints ourselves.
Supported: Struct, dict[str, T], list[T], tuple[T, ...], Literal, Annotated with Meta, unions, Any, str, int, float,
bool and None.

- A field of type `str` accepts numbers and booleans as written: `1.10` stays `1.10`.
- `Annotated[int, Meta(extra={"unit": "time"})]` accepts the formats of a unit: `time`, `duration` (both in seconds) or
  `memory` (MiB). See `job.units`. Limits on such a field are in seconds or MiB.
- An empty value (null) of a field that has a default and does not accept null means the default. In a `dict[str, T]` it
  means that the key is absent.
- Short forms: a Struct may have `__short_forms__(value) -> dict[str, object] | None` (`type_hints.short_form`). It gets
  any value that is neither null nor a mapping (text, number, boolean, list) and that no other member of a union
  accepts. It returns the equivalent mapping, in which a value passed through unchanged keeps its position, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, FindingCode, in_order
from hpc_launch.job.document import Document, KeyPath, Source
from hpc_launch.job.shell_text import visible
from hpc_launch.job.type_hints import (
    Member,
    describe,
    describe_expected,
    description_at,
    description_of,
    field_hint,
    fields_of,
    label,
    limit_error,
    members,
    nearest,
    nullable,
)
from hpc_launch.job.units import UNITS
from hpc_launch.plugins.entry_points import Descriptor, load


def long_form(source: Source, type_: type[Struct], *, path: KeyPath = ()) -> Document:
    """A copy of `source` with all short forms at and below `path` expanded, and matching tables.

    Layers have to be in this form before they are merged; otherwise `launcher: torchrun` in one layer and `launcher:
    {options: […]}` in another would replace each other. Nothing is validated; values that match no short form stay.
    """
    return LongForm(source, {path: type_}).document()


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
        return any(value == choice and type(value) is type(choice) for choice in member.choices)
    if value is None:
        return kind is type(None)
    if isinstance(value, bool):
        return kind in (bool, str)
    if member.unit is not None:
        return True
    return kind is str or kind is type(value) or (kind is float and isinstance(value, int))


class LongForm:
    """Copies the data of `source` with short forms expanded, and its tables with the paths in the copy.

    `types` maps a path to its class, with `()` for the root.
    """

    def __init__(self, source: Source, types: Mapping[KeyPath, type[Struct]]) -> None:
        self.source = source
        self.types = types
        self.result = Document({})

    def document(self) -> Document:
        """The copy."""
        self.result.data.update(self.value(self.source.data, Any, (), ()))
        return self.result

    def value(self, value: Any, type_: Any, old: KeyPath, new: KeyPath) -> Any:
        """The long form of `value`, whose path is `old` in the source and `new` in the result."""
        for name in ("places", "key_places", "written"):
            if old in (table := getattr(self.source, name)):
                getattr(self.result, name)[new] = table[old]
        alternatives = members(self.types.get(new, type_))
        struct = next((member.kind for member in alternatives if member.is_struct), None)
        if isinstance(value, Mapping):
            value_type = next((member.args[1] for member in alternatives if member.kind is dict and member.args), Any)
            return self.mapping(value, struct, value_type, old, new)
        expand = getattr(struct, "__short_forms__", None)
        if value is not None and expand is not None and not any(accepts(member, value) for member in alternatives):
            mapping = expand(value)
            if mapping is not None and struct is not None:
                if (place := self.source.places.get(old)) is not None:
                    self.result.places.update(dict.fromkeys(((*new, key) for key in mapping), place))
                types = fields_of(struct)
                return {
                    key: self.value(child, types[key].type, old if child is value else (*new, key), (*new, key))
                    for key, child in mapping.items()
                }
        if isinstance(value, list):
            item_type = next((member.args[0] for member in alternatives if member.kind is list and member.args), Any)
            return [self.value(child, item_type, (*old, at), (*new, at)) for at, child in enumerate(value)]
        return value

    def mapping(
        self, data: Mapping[str, Any], struct: type[Struct] | None, value_type: Any, old: KeyPath, new: KeyPath
    ) -> dict[str, Any]:
        """The long form of a mapping, a `struct` or one with values of a type."""
        types = {key: info.type for key, info in fields_of(struct).items()} if struct is not None else {}
        return {
            key: self.value(child, types.get(key, value_type), (*old, key), (*new, key)) for key, child in data.items()
        }


S = TypeVar("S", bound=Struct)

_INVALID: Any = object()


def read(source: Source, type_: type[S], *, path: KeyPath = ()) -> tuple[S | None, list[Finding]]:
    """Read the data at `path` as a `type_`, or return None if there are errors. Findings are in file order.

    HL010 unknown key, HL011 wrong type, HL012 missing key, HL013 out of range or not one of the choices.
    """
    value, findings = _read_at(source, type_, path, partial=False)
    return (None if value is _INVALID or findings else value), findings


def check(source: Source, type_: type[Struct], *, path: KeyPath = ()) -> list[Finding]:
    """Findings for one of several layers: like `read`, but keys may be missing and every value may be null."""
    return _read_at(source, type_, path, partial=True)[1]


def _read_at(source: Source, type_: type[Struct], path: KeyPath, *, partial: bool) -> tuple[Any, list[Finding]]:
    reader = _StructReader(long_form(source, type_, path=path), type_, partial=partial)
    data: Any = reader.source.data
    for key in path:
        data = data[key]
    value = reader.struct(type_, data, path)
    return value, in_order(reader.findings)


class _StructReader:
    """One pass over data in its long form that collects findings. An invalid value is returned as `_INVALID`."""

    def __init__(self, source: Document, type_: type[Struct], *, partial: bool) -> None:
        self.source = source
        self.root = type_
        self.partial = partial
        self.findings: list[Finding] = []

    def report(
        self, code: FindingCode, message: str, path: KeyPath, hint: str | None = None, *, at_key: bool = False
    ) -> Any:
        place = self.source.key_places.get(path) if at_key else None
        positions = (self.source.places.get(path[:end]) for end in range(len(path), -1, -1))
        place = place or next(filter(None, positions), None)
        self.findings.append(Finding(code, message, place, hint or description_at(self.root, path)))
        return _INVALID

    def struct(self, type_: type[Struct], value: Any, path: KeyPath) -> Any:
        if not isinstance(value, Mapping):
            return self.report_type(members(type_), value, path)
        fields = fields_of(type_)
        values: dict[str, Any] = {}
        for key, child in value.items():
            key_path = (*path, key)
            if key not in fields:
                self.report_unknown_key(key_path, child, type_)
            elif child is not None or nullable(fields[key].type):
                values[fields[key].name] = self.value(fields[key].type, child, key_path)
        for key, info in fields.items():
            if info.required and not self.partial and info.name not in values:
                key_path, hint = (*path, key), field_hint(type_, key)
                message = f"`{label(key_path)}` is missing"
                values[info.name] = self.report(FindingCode.MISSING_KEY, message, key_path, hint, at_key=True)
        return _INVALID if self.partial or any(child is _INVALID for child in values.values()) else type_(**values)

    def value(self, annotation: Any, value: Any, path: KeyPath) -> Any:
        alternatives = members(annotation)
        written_text = self.written(value, path)
        matching = [member for member in alternatives if accepts(member, value)]
        if len(matching) < len(alternatives) or len(matching) > 1:
            # A text type with its own format beside other types: text in another format is not meant for it.
            matching = [
                member for member in matching if member.text_format is None or limit_error(member, written_text) is None
            ]
        if not matching and written_text is not None:
            # `Literal["1", "2"]` accepts 1 as written, like `str`.
            matching = [member for member in alternatives if member.kind is Literal and written_text in member.args]
            value = written_text if matching else value
        if not matching:
            return self.report_type(alternatives, value, path)
        # The most specific member: a choice first, then the exact type, and text last because it accepts every scalar.
        member = min(
            matching, key=lambda one: (one.kind is Any, one.kind is str, one.kind not in (Literal, type(value)))
        )
        return self.convert(member, value, path)

    def convert(self, member: Member, value: Any, path: KeyPath) -> Any:
        """Convert `value`, whose YAML type `member` accepts, and check its limits."""
        kind, args, metas = member
        if member.plugins is not None and value not in args:
            try:
                load(member.plugins, value, Descriptor)
            except Refused as refused:
                (broken,) = refused.findings
                return self.report(broken.code, broken.message, path, broken.hint)
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
                return self.report(FindingCode.WRONG_TYPE, f"`{label(path)}`: {error}", path)
        else:
            try:
                result = self.written(value, path) if kind is str else kind(value)
            except OverflowError:
                return self.report(FindingCode.WRONG_TYPE, f"`{label(path)}` is too large", path)
        violation = None if result is _INVALID else limit_error(member, result)
        if violation is not None:
            message = f"`{label(path)}` {violation}, not {describe(value)}"
            return self.report(FindingCode.INVALID_VALUE, message, path, description_of(metas))
        return result

    def mapping(self, args: tuple[Any, ...], value: Mapping[str, Any], path: KeyPath) -> Any:
        key_type, value_type = args or (str, Any)
        result = {}
        for key, child in value.items():
            key_path, known = (*path, key), members(key_type)
            expected = None if any(accepts(one, key) for one in known) else f"must be {describe_expected(known)}"
            for error in filter(None, (expected, *(limit_error(member, key) for member in known))):
                message = f"the key `{label(key_path)}` {error}"
                result[key] = self.report(FindingCode.INVALID_VALUE, message, key_path, at_key=True)
            if child is not None or nullable(value_type):
                item = self.value(value_type, child, key_path)
                result[key] = _INVALID if result.get(key) is _INVALID else item
        return _INVALID if any(child is _INVALID for child in result.values()) else result

    def items(self, kind: Any, args: tuple[Any, ...], value: list[Any], path: KeyPath) -> Any:
        fixed = kind is tuple and args[-1] is not ...
        if fixed and len(value) != len(args):
            message = f"`{label(path)}` must have {len(args)} items, not {len(value)}"
            return self.report(FindingCode.INVALID_VALUE, message, path)
        types = args if fixed else (args or (Any,))[:1] * len(value)
        result = [self.value(types[at], child, (*path, at)) for at, child in enumerate(value)]
        return _INVALID if any(child is _INVALID for child in result) else kind(result)

    def written(self, value: Any, path: KeyPath) -> str | None:
        """The text of a scalar as written, or None for an empty value or a collection."""
        if isinstance(value, str):
            return value
        if not isinstance(value, (int, float)):
            return None
        return self.source.written.get(path, str(value).lower() if isinstance(value, bool) else str(value))

    def report_unknown_key(self, path: KeyPath, value: Any, type_: type[Struct]) -> None:
        from hpc_launch.job.key_hints import unknown_key_hint  # only for an invalid file, to keep start-up fast

        inside = f" in `{label(path[:-1])}`" if len(path) > 1 else ""
        hint = unknown_key_hint(path, value, type_, self.root)
        message = f"unknown key `{visible(str(path[-1]))}`{inside}"
        self.report(FindingCode.UNKNOWN_KEY, message, path, hint, at_key=True)

    def report_type(self, alternatives: tuple[Member, ...], value: Any, path: KeyPath) -> Any:
        from hpc_launch.job.key_hints import correction_hint, value_hint  # as above

        subject = f"`{label(path)}`" if path else "the file"
        actual = describe(value, self.source.written.get(path))
        message = f"{subject} must be {describe_expected(alternatives)}, not {actual}"
        choices = [str(choice) for member in alternatives if member.kind is Literal for choice in member.choices]
        hint = value_hint(path, value)
        if choices and isinstance(value, (str, int, float)):
            closest = nearest(str(value), choices)
            hint = hint or (f"did you mean `{closest}`?" if closest else None)
            return self.report(FindingCode.INVALID_VALUE, message, path, hint)
        hint = hint or correction_hint(path, {member.kind for member in alternatives}, value)
        return self.report(FindingCode.WRONG_TYPE, message, path, hint)
