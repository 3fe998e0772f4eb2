"""Records: JSON files as frozen Structs. Reading is lenient, since shells and other releases write these files too."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, ValidationError, to_builtins
from msgspec.structs import fields

from hpc_launch.base.files import create_once, open_regular, read_text, write_atomic

LONGEST = 1 << 30
"""Bytes of the largest JSON Lines file that is read."""
LONGEST_LINE = 1 << 20
"""Bytes of the longest line of a JSON Lines file that is read."""

R = TypeVar("R", bound=Struct)
T = TypeVar("T")

_LOCK = threading.RLock()
"""msgspec 0.22 reads a Struct type when it first meets it; two threads that do so at the same time end the process."""


def as_type(value: Any, kind: type[T], *, strict: bool = True, from_attributes: bool = False) -> T:
    """`msgspec.convert` for any thread. Raises ValidationError."""
    with _LOCK:
        return msgspec.convert(value, kind, strict=strict, from_attributes=from_attributes)


def json_as_type(text: str | bytes, kind: type[T]) -> T:
    """`msgspec.json.decode` for any thread. Raises MsgspecError."""
    with _LOCK:
        return msgspec.json.decode(text, type=kind)


def read_record(path: Path, kind: type[R]) -> R | None:
    """The record in a file; None where the file is missing, torn, or not a record of this kind. Never raises."""
    try:
        return as_record(json.loads(read_text(path)), kind)
    except (OSError, ValueError, RecursionError):
        return None


def as_record(value: object, kind: type[R]) -> R | None:
    """Convert parsed JSON field by field; an invalid value counts as missing, and unknown keys are ignored.

    Numbers and their decimal text stand for one another, as shells write them. None where `value` is not an object, or
    where a field without a default is missing.
    """
    try:
        result: R = _struct(kind, value)
    except (ValidationError, RecursionError):
        return None
    return result


def line_record(line: bytes, kind: type[R]) -> R | None:
    """The record in one line of a JSON Lines file; None where the line is blank, torn, or too long."""
    if not line.strip() or len(line) > LONGEST_LINE:
        return None
    try:
        return as_record(json.loads(line), kind)
    except (ValueError, RecursionError):
        return None


def file_lines(path: Path, *, longest: int = LONGEST, links: bool = True) -> Iterator[bytes]:
    """The lines of a file, up to LONGEST_LINE bytes each; nothing where it cannot be read, is not a regular file, or
    holds more than `longest` bytes. `links`: as in `open_regular`."""
    try:
        with open_regular(path, links=links) as stream:
            if os.fstat(stream.fileno()).st_size > longest:
                return
            left = longest
            while left > 0 and (line := stream.readline(min(LONGEST_LINE, left))):
                left -= len(line)
                yield line
    except OSError:
        return


def record_text(record: Struct, *, indent: int | None = 2) -> str:
    """A record as JSON. Shell scripts search it for `"key": value`, with one space."""
    return json.dumps(to_builtins(record, enc_hook=str), indent=indent) + "\n"


def write_record(path: Path, record: Struct, *, sync: bool = True) -> None:
    """Replace a file by this record in one step. `sync`: as in `write_atomic`. Raises OSError."""
    write_atomic(path, record_text(record), sync=sync)


def create_record(path: Path, record: Struct, *, sync: bool = True) -> bool:
    """Create a file with this record unless it exists; true for the one process that created it. Raises OSError.

    `sync`: as in `write_atomic`.
    """
    return create_once(path, record_text(record), sync=sync)


def _whole(value: object) -> int | None:
    """An integer of at most 18 digits, also from its decimal text; None for anything else."""
    number = _number(value)
    return int(number) if number is not None and number == int(number) and abs(number) < 10**18 else None


def _number(value: object) -> float | None:
    """A finite number, also from its text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str | None:
    if isinstance(value, str):
        # JSON can hold half a character (a lone surrogate), which no file or terminal can.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18 else None


def _flag(value: object) -> bool | None:
    if isinstance(value, str):
        return value.strip().lower() not in ("", "0", "false", "no", "null")
    return None if value is None else bool(value)


_SCALARS: dict[Any, Callable[[object], Any]] = {str: _text, int: _whole, float: _number, bool: _flag}


@cache
def _converter(kind: Any) -> Callable[[Any], Any]:
    """A function that converts a JSON value to this type, or raises ValidationError."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin, arguments = get_origin(plain), get_args(plain)
    if origin in (Union, UnionType) and len(arguments) == 2 and NoneType in arguments:
        return partial(_optional, _converter(next(one for one in arguments if one is not NoneType)))
    if isinstance(plain, type) and issubclass(plain, Struct):
        return partial(_struct, plain)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return partial(_items, tuple, _converter(arguments[0]))
    if origin is tuple:
        return partial(_row, tuple(map(_converter, arguments)))
    if origin is list:
        return partial(_items, list, _converter(arguments[0]))
    if origin is dict and arguments[0] is str:
        return partial(_mapping, _converter(arguments[1]))
    if kind in _SCALARS:
        return partial(_scalar, _SCALARS[kind])
    return partial(as_type, kind=kind, strict=False)


def _struct(kind: type[R], value: Any) -> R:
    if not isinstance(value, dict):
        raise ValidationError("not a JSON object")
    found: dict[str, Any] = {}
    for name, key, converter, required in _fields(kind):
        if key in value:
            with suppress(ValidationError):
                found[name] = converter(value[key])
        if required and name not in found:
            raise ValidationError(f"no valid `{key}`")
    return kind(**found)


@cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, str, Callable[[Any], Any], bool], ...]:
    return tuple((field.name, field.encode_name, _converter(field.type), field.required) for field in fields(kind))


def _optional(converter: Callable[[Any], Any], value: Any) -> Any:
    # A shell writes an empty string for what it does not know.
    return None if value is None or value == "" else converter(value)


def _scalar(converter: Callable[[Any], Any], value: Any) -> Any:
    result = converter(value)
    if result is None:
        raise ValidationError("not a value of this type")
    return result


def _items(kind: type[Any], converter: Callable[[Any], Any], value: Any) -> Any:
    """All valid items of a list."""
    if not isinstance(value, list | tuple):
        raise ValidationError("not a list")
    return kind(result for item in value for result in _valid(converter, item))


def _row(converters: tuple[Callable[[Any], Any], ...], value: Any) -> Any:
    """A list of a fixed length; all its items have to be valid."""
    if not isinstance(value, list | tuple) or len(value) != len(converters):
        raise ValidationError("not a list of this length")
    return tuple(converter(item) for converter, item in zip(converters, value, strict=True))


def _mapping(converter: Callable[[Any], Any], value: Any) -> Any:
    """All valid values of an object."""
    if not isinstance(value, dict):
        raise ValidationError("not a JSON object")
    return {_text(key) or "": result for key, item in value.items() for result in _valid(converter, item)}


def _valid(converter: Callable[[Any], Any], value: Any) -> Iterator[Any]:
    try:
        yield converter(value)
    except ValidationError:
        return
