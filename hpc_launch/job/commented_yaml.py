"""Write YAML for people: short mappings and lists on one line, and a comment beside each key that has one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_launch.job.document import KeyPath, flow_yaml

_WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_AMBIGUOUS = re.compile(r"(?i)(y|n|yes|no|on|off|true|false|null|none)")
"""YAML 1.1 reads these as other types; people may read `none` as one."""


class Written(str):
    """A scalar as it was written, such as 1.10, which is to stay so."""

    __slots__ = ()


def as_written(value: Any, path: KeyPath, written: Mapping[KeyPath, str]) -> Any:
    """A copy of a value at this path, in which numbers and truth values have their original text."""
    if isinstance(value, Mapping):
        return {key: as_written(child, (*path, key), written) for key, child in value.items()}
    if isinstance(value, list):
        return [as_written(child, (*path, at), written) for at, child in enumerate(value)]
    return value if isinstance(value, str | None) or path not in written else Written(written[path])


def yaml_text(data: Mapping[str, Any], notes: Mapping[tuple[str, ...], str], head: Sequence[str]) -> str:
    """The file: `head` as comments at the top, and each key's note as a comment."""
    lines = [f"# {_line(line)}".rstrip() for line in head]
    lines += _mapping(data, (), notes, 0)
    return "\n".join(lines) + "\n"


def _mapping(
    data: Mapping[str, Any], path: tuple[str, ...], notes: Mapping[tuple[str, ...], str], depth: int
) -> Iterator[str]:
    for key, value in data.items():
        key_path = (*path, key)
        start = f"{'  ' * depth}{_scalar(key)}:"
        note = f"  # {_line(notes[key_path])}" if key_path in notes else ""
        flat = f"{start} {_flow(value)}"
        nested = any((*key_path, child) in notes for child in value) if isinstance(value, Mapping) else False
        if isinstance(value, Mapping) and value and (depth == 0 or nested or len(flat) > _WIDTH):
            yield f"{start}{note}"
            yield from _mapping(value, key_path, notes, depth + 1)
        elif isinstance(value, list) and len(flat) > _WIDTH:
            yield f"{start}{note}"
            yield from (f"{'  ' * depth}  - {_flow(item)}" for item in value)
        else:
            yield f"{flat}{note}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, Written):
        return str(value)
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and not _AMBIGUOUS.fullmatch(value)
    return value if plain else flow_yaml(value)


def _line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
