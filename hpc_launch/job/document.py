"""A YAML document with positions: what each spelling of a value means, where each value comes from, and how one is
written with comments."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpc_launch.base.files import FileAccess
from hpc_launch.base.findings import Place

NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# At most 1000 digits: int() rejects text of more than 4300, and nothing that long is meant as a number.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def scalar(text: str) -> str | int | float | bool | None:
    """Convert an unquoted YAML scalar. `--set KEY=VALUE` uses the same rules."""
    if text in NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        # An abbreviated commit hash such as 12e4567 looks like a huge number; keep it as text.
        return number if math.isfinite(number) else text
    return text


def flow_yaml(value: Any) -> str:
    """A value as YAML on one line, in printable characters: JSON, with the escapes of YAML."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(
        one if one.isprintable() else f"\\u{ord(one):04x}" if one < "\U00010000" else f"\\U{ord(one):08x}"
        for one in text
    )


KeyPath = tuple[str | int, ...]
"""Keys and list indices that lead to a value."""


class Source(Struct, frozen=True):
    """Data (dict, list, str, int, float, bool, None), with tables keyed by the path of each value.

    `places` has every value, () the whole file; `key_places` has the key of each mapping entry; `written` has the
    original text of each scalar, so `1.10` and not 1.1 (quoted text without its quotes). Values below an alias have the
    positions of the anchor; the aliased value itself has that of the alias.
    """

    data: dict[str, Any]
    places: dict[KeyPath, Place] = {}
    key_places: dict[KeyPath, Place] = {}
    written: dict[KeyPath, str] = {}


class Document(Source, frozen=True):
    """The data of a file."""

    text: str = ""
    """The file's text."""
    opened: FileAccess | None = None
    """Who can change the file that was read: its path may lead to another one by now."""


class Origin(Struct, frozen=True):
    """`layer` is `default`, `site NAME`, `base NAME`, `user`, `job`, `--set` or `rule`.

    `note` is the reason of a rule, `fact` describes the source of a site fact, and `why` is the reason that the site
    gives.
    """

    layer: str
    place: Place | None = None
    note: str = ""
    fact: str = ""
    why: str = ""

    def short(self) -> str:
        """Short form for a comment in the script: file name and line, or the rule's reason."""
        return "; ".join(part for part in (self._where(), self.fact, self.why) if part)

    def _where(self) -> str:
        if self.note:
            return self.note
        if self.place is None:
            return self.layer
        name = self.place.file.rsplit("/", 1)[-1]
        return name if self.place.line is None else f"{name}:{self.place.line}"

    def __str__(self) -> str:
        place = f" {self.place}" if self.place else ""
        notes = "; ".join(part for part in (self.note, self.fact, self.why) if part)
        return f"[{self.layer}]{place}{f' ({notes})' if notes else ''}"


def rule(note: str) -> Origin:
    """Origin of a value that no file sets: a rule of hpc-launch, with a short reason."""
    return Origin("rule", note=note)


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


def written_arguments(words: Sequence[str]) -> dict[str, Any] | list[str]:
    """`args:` for these words: `key: value` where that means the same words in the same order, else a list."""
    result: dict[str, list[Any]] = {}
    for text in words:
        name = text[2:]
        if re.match(r"--[A-Za-z][\w.-]*\Z", text) and name not in result:
            result[name] = []
        elif not result or re.match(r"-(?!\d)", text):
            return list(words)
        else:
            result[list(result)[-1]].append(int(text) if re.fullmatch(r"0|-?[1-9]\d{0,15}", text) else text)
    return {name: True if not found else found[0] if len(found) == 1 else found for name, found in result.items()}


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
        flat = f"{start} {flow_text(value)}"
        nested = any((*key_path, child) in notes for child in value) if isinstance(value, Mapping) else False
        if isinstance(value, Mapping) and value and (depth == 0 or nested or len(flat) > _WIDTH):
            yield f"{start}{note}"
            yield from _mapping(value, key_path, notes, depth + 1)
        elif isinstance(value, list) and len(flat) > _WIDTH:
            yield f"{start}{note}"
            yield from (f"{'  ' * depth}  - {flow_text(item)}" for item in value)
        else:
            yield f"{flat}{note}"


def flow_text(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {flow_text(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow_text, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, Written):
        return str(value)
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and not _AMBIGUOUS.fullmatch(value)
    return value if plain else flow_yaml(value)


def _line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
