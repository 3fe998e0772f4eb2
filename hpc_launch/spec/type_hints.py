"""Type hints of a file's Struct types, taken apart: what the reader, the short forms and the JSON Schema go by."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields


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
    def form(self) -> str | None:
        """What a text of a form of its own is called, from its Meta's title: `a range such as 2..4`."""
        return next((meta.title for meta in self.metas if meta.title), None)

    @property
    def is_struct(self) -> bool:
        """Whether it is a Struct class."""
        return isinstance(self.kind, type) and issubclass(self.kind, Struct)


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


@cache
def fields_of(type_: type[Struct]) -> dict[str, FieldInfo]:
    """The fields of a Struct type by the key that stands in the file."""
    return {info.encode_name: info for info in struct_fields(type_)}


def structs_in(annotation: Any) -> list[type[Struct]]:
    """The Struct types that a type is, or holds in its items."""
    found: list[type[Struct]] = []
    for member in members(annotation):
        if member.is_struct:
            found.append(member.kind)
        elif member.kind in (dict, list, tuple):
            found += [struct for arg in member.args if arg is not ... for struct in structs_in(arg)]
    return found


def nullable(annotation: Any) -> bool:
    """Whether null may stand."""
    return any(member.kind in (type(None), Any) for member in members(annotation))
