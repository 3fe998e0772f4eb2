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

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from hpc_launch.base.findings import Finding, Place
from hpc_launch.spec.source import Document, Path, scalar
from hpc_launch.spec.text import visible
from hpc_launch.spec.units import UNITS

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}
_BAD: Any = object()


class Source(Protocol):
    """Data with its tables: `source.Document`, `merge.Layer` and `merge.Merged` are such."""

    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def places(self) -> Mapping[Path, Place]: ...
    @property
    def key_places(self) -> Mapping[Path, Place]: ...
    @property
    def written(self) -> Mapping[Path, str]: ...


class Member(NamedTuple):
    """One alternative of a union (most types have one): a bare type with what its Meta objects say."""

    kind: Any
    """A Struct class, str, int, float, bool, dict, list, tuple, Literal, NoneType or Any."""
    args: tuple[Any, ...]
    metas: tuple[Meta, ...]

    @property
    def unit(self) -> str | None:
        """The name of the unit, if any."""
        return next((meta.extra["unit"] for meta in self.metas if meta.extra and "unit" in meta.extra), None)

    @property
    def is_struct(self) -> bool:
        """Whether it is a Struct class."""
        return isinstance(self.kind, type) and issubclass(self.kind, Struct)


def read(source: Source, type_: type[S], *, path: Path = ()) -> tuple[S | None, list[Finding]]:
    """The data at `path` as a `type_`, or None when a finding is an error. Findings come in the order of the file.

    HL010 unknown key, HL011 wrong type, HL012 missing key, HL013 out of range or not one of the choices.
    """
    value, findings = _walked(source, type_, path, partial=False)
    return (None if value is _BAD or findings else value), findings


def check(source: Source, type_: type[Struct], *, path: Path = ()) -> list[Finding]:
    """The findings for one layer of several: as `read`, but keys may be missing and null always may stand."""
    return _walked(source, type_, path, partial=True)[1]


def long_form(source: Source, type_: type[Struct], *, path: Path = ()) -> Document:
    """A copy of `source` with all short forms at and below `path` written out, and the tables to match.

    To be applied to each layer before layers are merged: else `launcher: torchrun` in one and
    `launcher: {options: […]}` in another would replace each other. Nothing is checked; what fits no form stays.
    """
    tables = Document({}, dict(source.places), dict(source.key_places), dict(source.written))
    tables.data.update(
        _replaced(source.data, path, lambda held: _Lengthening(source, tables).value(type_, held, path, path))
    )
    return tables


@cache
def fields_of(type_: type[Struct]) -> dict[str, FieldInfo]:
    """The fields of a Struct type by the key that stands in the file."""
    return {info.encode_name: info for info in struct_fields(type_)}


def members(annotation: Any) -> tuple[Member, ...]:
    """The alternatives of a type, Annotated and unions taken apart. An outer Meta holds for each of them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extras = get_args(annotation)
        metas = tuple(extra for extra in extras if isinstance(extra, Meta))
        return tuple(Member(kind, args, (*own, *metas)) for kind, args, own in members(inner))
    if origin in (Union, UnionType):
        return tuple(member for part in get_args(annotation) for member in members(part))
    if origin is not None:
        return (Member(origin, get_args(annotation), ()),)
    return (Member(type(None) if annotation is None else annotation, (), ()),)


def nearest(word: str, known: list[str]) -> str | None:
    """The one of `known` that `word` was probably meant to be."""
    # Imported on a fault only: no good file needs it.
    import difflib

    plain = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def _walked(source: Source, type_: type[Struct], path: Path, *, partial: bool) -> tuple[Any, list[Finding]]:
    walk = _Walk(long_form(source, type_, path=path), type_, partial=partial)
    data: Any = walk.source.data
    for key in path:
        data = data[key]
    value = walk.struct(type_, data, path)
    return value, sorted(walk.findings, key=_by_place)


def _by_place(finding: Finding) -> tuple[str, int, int]:
    place = finding.place or Place("")
    return place.file, place.line or 0, place.column or 0


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
        if value is not None and shorthand is not None and not any(_takes(member, value) for member in alternatives):
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


def _takes(member: Member, value: Any) -> bool:
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
    if value is None or isinstance(value, bool):
        return kind in (type(value), str) if value is not None else kind is type(None)
    if member.unit is not None:
        return True
    return kind is str or kind is type(value) or (kind is float and isinstance(value, int))


class _Walk:
    """One walk over data in its long form, gathering findings. A value with a fault comes back as `_BAD`."""

    def __init__(self, source: Document, type_: type[Struct], *, partial: bool) -> None:
        self.source = source
        self.root = type_
        self.partial = partial
        self.findings: list[Finding] = []

    def fault(self, code: str, message: str, path: Path, hint: str | None = None, *, at_key: bool = False) -> Any:
        place = self.source.key_places.get(path) if at_key else None
        ends = range(len(path), -1, -1)
        known = (self.source.places[path[:end]] for end in ends if path[:end] in self.source.places)
        self.findings.append(Finding(code, message, place or next(known, None), hint or self.what_for(path)))
        return _BAD

    def what_for(self, path: Path) -> str | None:
        """The description of the innermost field on the way to a value: the hint where there is no better one."""
        about, types = None, [self.root]
        for key in path:
            info = next((fields_of(type_)[key] for type_ in types if key in fields_of(type_)), None)
            if info is None:
                continue  # a key of a mapping with free names, or the number of an item
            about = _about(info.type, str(key)) or about
            types = [found for member in members(info.type) for found in _structs_in(member)]
        return about

    def struct(self, type_: type[Struct], value: Any, path: Path) -> Any:
        if not isinstance(value, Mapping):
            return self.wrong(members(type_), value, path)
        fields = fields_of(type_)
        values: dict[str, Any] = {}
        for key, child in value.items():
            here = (*path, key)
            if key not in fields:
                self.unknown(key, type_, here)
            elif child is not None or _nullable(fields[key].type):
                values[fields[key].name] = self.value(fields[key].type, child, here)
        for key, info in fields.items():
            if info.required and not self.partial and info.name not in values:
                here = (*path, key)
                self.fault("HL012", f"`{_label(here)}` is missing", here, _about(info.type, key), at_key=True)
                values[info.name] = _BAD
        return _BAD if self.partial or any(child is _BAD for child in values.values()) else type_(**values)

    def value(self, annotation: Any, value: Any, path: Path) -> Any:
        alternatives = members(annotation)
        fitting = [member for member in alternatives if _takes(member, value)]
        text = self.written(value, path)
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
                return self.fault("HL011", f"`{_label(path)}`: {error}", path)
        else:
            result = self.written(value, path) if kind is str else kind(value)
        if result is not _BAD:
            outside = _outside(member, result)
            if outside is not None:
                return self.fault(
                    "HL013", f"`{_label(path)}` {outside}, not {_shown(value)}", path, _about_metas(metas)
                )
        return result

    def mapping(self, args: tuple[Any, ...], value: Mapping[str, Any], path: Path) -> Any:
        of_keys, of_values = args or (str, Any)
        result = {}
        for key, child in value.items():
            here = (*path, key)
            for outside in filter(None, (_outside(member, key) for member in members(of_keys))):
                result[key] = self.fault("HL013", f"the key `{_label(here)}` {outside}", here, at_key=True)
            if child is not None or _nullable(of_values):
                got = self.value(of_values, child, here)
                result[key] = _BAD if result.get(key) is _BAD else got
        return _BAD if any(child is _BAD for child in result.values()) else result

    def items(self, kind: Any, args: tuple[Any, ...], value: list[Any], path: Path) -> Any:
        fixed = kind is tuple and args[-1] is not ...
        if fixed and len(value) != len(args):
            return self.fault("HL013", f"`{_label(path)}` must have {len(args)} items, not {len(value)}", path)
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
        fields = fields_of(type_)
        near = nearest(key, list(fields))
        below = [
            f"`{name}`"
            for name, info in fields.items()
            if any(member.is_struct and key in fields_of(member.kind) for member in members(info.type))
        ]
        if below:
            hint = f"it belongs under {' or '.join(below)}"
        elif type_ is not self.root and key in fields_of(self.root):
            hint = "it belongs at the top level: mind the indent"
        elif near is not None:
            hint = f"did you mean `{near}`?"
        else:
            hint = "known here: " + ", ".join(fields)
        inside = f" in `{_label(path[:-1])}`" if len(path) > 1 else ""
        self.fault("HL010", f"unknown key `{visible(key)}`{inside}", path, hint, at_key=True)

    def wrong(self, alternatives: tuple[Member, ...], value: Any, path: Path) -> Any:
        choices = [choice for member in alternatives if member.kind is Literal for choice in member.args]
        expected = list(dict.fromkeys(filter(None, map(_in_words, alternatives))))
        label = f"`{_label(path)}`" if path else "the file"
        message = f"{label} must be {' or '.join(expected)}, not {_shown(value, self.source.written.get(path))}"
        if choices and isinstance(value, (str, int, float)):
            near = nearest(str(value), [str(choice) for choice in choices])
            return self.fault("HL013", message, path, f"did you mean `{near}`?" if near else None)
        return self.fault("HL011", message, path, _mending({member.kind for member in alternatives}, value))


def _structs_in(member: Member) -> list[type[Struct]]:
    """The Struct types that a member is, or holds in its items."""
    if member.is_struct:
        return [member.kind]
    inner = [arg for arg in member.args if member.kind in (dict, list, tuple) and arg is not ...]
    return [found for arg in inner for one in members(arg) for found in _structs_in(one)]


def _nullable(annotation: Any) -> bool:
    return any(member.kind in (type(None), Any) for member in members(annotation))


def _label(path: Path) -> str:
    return visible("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix("."))


def _shown(value: Any, written: str | None = None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {written or value}"
    if isinstance(value, str):
        return f"the text {value if len(value) <= 40 else value[:37] + '...'!r}"
    return "a list" if isinstance(value, list) else "a mapping"


def _in_words(member: Member) -> str | None:
    if member.kind is type(None):
        return None
    if member.kind is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in member.args)
    return UNITS[member.unit].words if member.unit else _WORDS.get(member.kind, "a mapping")


def _mending(kinds: set[Any], value: Any) -> str | None:
    """How the value might be written so that it is right."""
    if isinstance(value, str):
        if {int, float} & kinds and isinstance(scalar(value), (int, float)):
            return "take the quotes away"
        if {int, float} & kinds and isinstance(scalar(value.lstrip("0") or "0"), int):
            return "take the leading zeros away"
        if bool in kinds:
            return "write true or false; yes, no, on and off are texts"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"write {int(value)}"
    if list in kinds and value is not None and not isinstance(value, Mapping):
        return "write a list: [one, two]"
    if isinstance(value, str) and any(isinstance(kind, type) and issubclass(kind, (dict, Struct)) for kind in kinds):
        return "write `key: value` lines below it, indented, with a space behind the colon"
    return None


def _about(annotation: Any, key: str) -> str | None:
    """What a field is for and an example, from its Meta."""
    about = _about_metas(tuple(meta for member in members(annotation) for meta in member.metas))
    examples = [meta.examples[0] for member in members(annotation) for meta in member.metas if meta.examples]
    return f"{about or ''} For example `{key}: {examples[0]}`".strip() if examples else about


def _about_metas(metas: tuple[Meta, ...]) -> str | None:
    return next((meta.description for meta in reversed(metas) if meta.description), None)


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    # As in JSON Schema: `$` is the very end (Python lets a line break follow), digits are the ASCII ones.
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), re.ASCII)


def _outside(member: Member, value: Any) -> str | None:
    """Which limit of its Meta objects a value breaks, in words; None for none."""
    write: Callable[[Any], str] = UNITS[member.unit].write if member.unit else str
    for meta in member.metas:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if meta.ge is not None and value < meta.ge:
                return f"must be at least {write(meta.ge)}"
            if meta.gt is not None and value <= meta.gt:
                return f"must be more than {write(meta.gt)}"
            if meta.le is not None and value > meta.le:
                return f"must be at most {write(meta.le)}"
            if meta.lt is not None and value >= meta.lt:
                return f"must be less than {write(meta.lt)}"
            if meta.multiple_of is not None and value % meta.multiple_of:
                return f"must be a multiple of {write(meta.multiple_of)}"
        elif isinstance(value, (str, list, dict, tuple)):
            what = "characters" if isinstance(value, str) else "items"
            if meta.min_length is not None and len(value) < meta.min_length:
                return f"must have at least {meta.min_length} {what}"
            if meta.max_length is not None and len(value) > meta.max_length:
                return f"must have at most {meta.max_length} {what}"
            if isinstance(value, str) and meta.pattern is not None and not _pattern(meta.pattern).search(value):
                return f"must match `{meta.pattern}`"
    return None
