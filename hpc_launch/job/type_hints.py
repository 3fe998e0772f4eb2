"""Types of fields that files share, how the reader, the short forms and the JSON schema look at type hints, and the
wording of the reader's findings: what was expected, what was found and how to fix it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from hpc_launch.base.patterns import SECRET_VALUE
from hpc_launch.job.document import KeyPath
from hpc_launch.job.shell_text import visible
from hpc_launch.job.units import UNITS
from hpc_launch.plugins.entry_points import BUILT_IN, plugin_names

Seconds = Annotated[int, Meta(extra={"unit": "time"})]
Duration = Annotated[int, Meta(extra={"unit": "duration"})]
Mebibytes = Annotated[int, Meta(extra={"unit": "memory"})]
Scalar = str | int | float | bool | None

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
LauncherName = Annotated[str, Meta(extra={"plugins": "launchers"})]
RuntimeName = Annotated[str, Meta(extra={"plugins": "runtimes"})]
SchedulerName = Annotated[str, Meta(extra={"plugins": "schedulers"})]
"""One of the built-in names of a group, or one that an installed package adds (`plugins.entry_points`)."""
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Member(NamedTuple):
    """One alternative of a union (most types have only one): a plain type with its Meta objects."""

    kind: Any
    """A Struct class, str, int, float, bool, dict, list, tuple, Literal, NoneType or Any."""
    args: tuple[Any, ...]
    metas: tuple[Meta, ...]

    @property
    def unit(self) -> str | None:
        """Name of the unit, if any."""
        return next((meta.extra["unit"] for meta in self.metas if meta.extra and "unit" in meta.extra), None)

    @property
    def plugins(self) -> str | None:
        """The group of plug-ins whose names are choices too, if any."""
        return next((meta.extra["plugins"] for meta in self.metas if meta.extra and "plugins" in meta.extra), None)

    @property
    def choices(self) -> Iterator[Any]:
        """All choices of a Literal; those of plug-ins come last, because they are looked up."""
        yield from self.args
        yield from plugin_names(self.plugins) if self.plugins is not None else ()

    @property
    def text_format(self) -> str | None:
        """Name of the text format, from the Meta's title: `a range such as 2..4`."""
        return next((meta.title for meta in self.metas if meta.title), None)

    @property
    def is_struct(self) -> bool:
        """Whether the type is a Struct class."""
        return isinstance(self.kind, type) and issubclass(self.kind, Struct)


@cache
def members(annotation: Any) -> tuple[Member, ...]:
    """The alternatives of a type, with Annotated and unions resolved. An outer Meta applies to each alternative."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extras = get_args(annotation)
        metas = tuple(extra for extra in extras if isinstance(extra, Meta))
        known = tuple(Member(kind, args, (*inner_metas, *metas)) for kind, args, inner_metas in members(inner))
        return tuple(Member(Literal, BUILT_IN[one.plugins], one.metas) if one.plugins else one for one in known)
    if origin in (Union, UnionType):
        return tuple(member for part in get_args(annotation) for member in members(part))
    if origin is not None:
        return (Member(origin, get_args(annotation), ()),)
    return (Member(type(None) if annotation is None else annotation, (), ()),)


@cache
def fields_of(type_: type[Struct]) -> dict[str, FieldInfo]:
    """Fields of a Struct type by their key in the file."""
    return {info.encode_name: info for info in struct_fields(type_)}


@cache
def descriptions(type_: type[Struct]) -> dict[str, str]:
    """The text below each field in the source of a Struct, by its key in the file: for hints and for the pages."""
    # Imported only for an invalid file, to keep start-up fast.
    import ast
    import inspect
    from textwrap import dedent

    texts: dict[str, str] = {}
    for one in reversed(type_.__mro__[: type_.__mro__.index(Struct)]):
        try:
            (definition,) = ast.parse(dedent(inspect.getsource(one))).body
        except OSError:  # installed without its source
            continue
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(field.target, ast.Name):
                text = below.value.value if isinstance(below.value, ast.Constant) else None
                texts[field.target.id] = " ".join(text.split()) if isinstance(text, str) else ""
    return {key: texts[info.name] for key, info in fields_of(type_).items() if texts.get(info.name)}


def short_form(about: str, keys: Mapping[type, str]) -> Callable[[object], dict[str, object] | None]:
    """The `__short_forms__` of a Struct: for a value of each type the key that it stands for. `about`: an example."""

    def expand(value: object) -> dict[str, object] | None:
        key = keys.get(type(value))
        return None if key is None else {key: value}

    expand.__doc__ = about
    return expand


def structs_in(annotation: Any) -> list[type[Struct]]:
    """Struct types that a type is or contains."""
    structs: list[type[Struct]] = []
    for member in members(annotation):
        if member.is_struct:
            structs.append(member.kind)
        elif member.kind in (dict, list, tuple):
            structs += [struct for arg in member.args if arg is not ... for struct in structs_in(arg)]
    return structs


def nullable(annotation: Any) -> bool:
    """Whether the type accepts null."""
    return any(member.kind in (type(None), Any) for member in members(annotation))


_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("ge", operator.ge, "at least"),
    ("gt", operator.gt, "more than"),
    ("le", operator.le, "at most"),
    ("lt", operator.lt, "less than"),
    ("multiple_of", lambda value, bound: value % bound == 0, "a multiple of"),
)


def limit_error(member: Member, value: Any) -> str | None:
    """Describe the limit that a value violates, or None if it violates none."""
    write: Callable[[Any], str] = UNITS[member.unit].write if member.unit else str
    for meta in member.metas:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            for name, holds, words in _BOUNDS:
                bound = getattr(meta, name)
                if bound is not None and not holds(value, bound):
                    return f"must be {words} {write(bound)}"
        elif isinstance(value, (str, list, dict, tuple)) and (error := _length_error(meta, value)) is not None:
            return error
    return None


def _length_error(meta: Meta, value: Any) -> str | None:
    unit = "characters" if isinstance(value, str) else "items"
    if meta.min_length is not None and len(value) < meta.min_length:
        return f"must have at least {meta.min_length} {unit}"
    if meta.max_length is not None and len(value) > meta.max_length:
        return f"must have at most {meta.max_length} {unit}"
    if isinstance(value, str) and meta.pattern is not None and not _compile(meta.pattern).search(value):
        return f"must match `{meta.pattern}`"
    return None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    # As in JSON Schema: `$` matches only at the very end (in Python also before a final newline), and digits are ASCII.
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), re.ASCII)


_KINDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}


def label(path: KeyPath) -> str:
    """Format a path: `environment.modules[2]`."""
    return visible("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix("."))


def describe(value: Any, written: str | None = None) -> str:
    """Describe a value. `written` is a number as written in the file."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {written or value}"
    if isinstance(value, str) and SECRET_VALUE.search(value):
        return "a text that looks like a secret"
    if isinstance(value, str):
        return f"the text {value if len(value) <= 40 else value[:37] + '...'!r}"
    return "a list" if isinstance(value, list) else "a mapping"


def describe_expected(alternatives: tuple[Member, ...]) -> str:
    """Describe the accepted types, except null."""
    names = list(dict.fromkeys(_describe_member(member) for member in alternatives if member.kind is not type(None)))
    if _KINDS[float] in names and _KINDS[int] in names:
        names.remove(_KINDS[int])
    return " or ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])}, or {names[-1]}"


def _describe_member(member: Member) -> str:
    if member.kind is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in member.choices)
    if member.text_format is not None:
        return member.text_format
    return UNITS[member.unit].description if member.unit else _KINDS.get(member.kind, "a mapping")


def nearest(word: str, known: list[str], cutoff: float = 0.6) -> str | None:
    """The most similar name in `known`, if any is close enough: 1 is the same name, 0 has nothing in common."""
    # Imported only for an invalid file, to keep start-up fast.
    import difflib

    normalized = {name.lower().replace("-", "_"): name for name in known}
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), normalized, n=1, cutoff=cutoff)
    return normalized[matches[0]] if matches else None


def description_at(root: type[Struct], path: KeyPath) -> str | None:
    """Description of the innermost field on the path: the hint where there is no better one."""
    description, types = None, [root]
    for key in path:
        owner = next((type_ for type_ in types if key in fields_of(type_)), None)
        if owner is None:
            continue  # a user-chosen key, or a list index
        description = field_hint(owner, str(key)) or description
        types = structs_in(fields_of(owner)[str(key)].type)
    return description


def field_hint(type_: type[Struct], key: str) -> str | None:
    """A field's description and example."""
    metas = tuple(meta for member in members(fields_of(type_)[key].type) for meta in member.metas)
    description = descriptions(type_).get(key) or description_of(metas)
    example = next((meta.examples[0] for meta in metas if meta.examples), None)
    return f"{description or ''} For example `{key}: {example}`".strip() if example is not None else description


def description_of(metas: tuple[Meta, ...]) -> str | None:
    """Description from the outermost Meta."""
    return next((meta.description for meta in reversed(metas) if meta.description), None)
