"""Configuration files of other programs as those programs read them, with the place of every value."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any

import yaml
from msgspec import Struct

from hpc_launch.base.findings import Finding, Place
from hpc_launch.spec.merge import Path

MAX_BYTES = 256 * 1024
_DEEPEST = 100
_NEVER_SEEN = "check its path and rights"


class Located(Struct, frozen=True):
    """A file's values, and where each key stands. `name` is the file of all places."""

    name: str
    data: dict[str, Any]
    places: Mapping[Path, Place]

    def place(self, *path: str | int) -> Place:
        """The place of a key, else of what holds it, else the file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return Place(self.name)


class _Doubled(ValueError):
    """A key stands twice in one mapping."""


def read(path: str | os.PathLike[str]) -> tuple[str | None, list[Finding]]:
    """The text of a file; HL600 where it cannot be read."""
    name = os.fspath(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            # A pipe that nobody writes to would be waited for, for ever.
            return None, [Finding("HL600", "this is not a regular file", Place(name), "name the file itself")]
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return None, [Finding("HL600", "the file is larger than 256 KiB", Place(name), "name a configuration file")]
        return content.decode("utf-8-sig"), []
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return None, [Finding("HL600", f"cannot read the file: {reason}", Place(name), _NEVER_SEEN)]
    except UnicodeDecodeError:
        return None, [Finding("HL600", "the file is not UTF-8", Place(name), "save it in the encoding UTF-8")]


def parse_json(text: str, name: str) -> tuple[Located | None, list[Finding]]:
    """A JSON object, strictly: Hugging Face reads these files so. (DeepSpeed alone would take comments, too.)"""
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except _Doubled as error:
        return None, [Finding("HL600", f"the key `{error}` is there twice", Place(name), "keep one of the two")]
    except json.JSONDecodeError as error:
        place = Place(name, error.lineno, error.colno)
        hint = "JSON has no comments, no comma behind the last value, and true, false and null in small letters"
        return None, [Finding("HL600", f"this is not JSON: {error.msg.lower()}", place, hint)]
    except (RecursionError, ValueError):
        return None, [Finding("HL600", "this cannot be read as JSON", Place(name), "nest less; use shorter numbers")]
    # JSON is YAML, but for the tabs: a space in place of each keeps the columns.
    return _located(data, text.replace("\t", " "), name)


def parse_yaml(text: str, name: str) -> tuple[Located | None, list[Finding]]:
    """A YAML mapping with the values that `yaml.safe_load` gives, for Accelerate reads it with that."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:  # the time that PyYAML takes grows with the square of it
                raise RecursionError
            if isinstance(event, yaml.AliasEvent):
                # A few lines of them can stand for more values than any memory holds.
                mark = event.start_mark
                place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name)
                return None, [Finding("HL600", "aliases are not followed here", place, "write the value itself")]
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name)
        problem = getattr(error, "problem", None) or "it cannot be read"
        return None, [Finding("HL600", f"this is not YAML: {problem}", place, "mind quotes, colons and the indent")]
    except (RecursionError, ValueError):
        return None, [Finding("HL600", "this cannot be read as YAML", Place(name), "nest less; use shorter numbers")]
    return _located(data, text, name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _Doubled(key)
        result[key] = value
    return result


def _located(data: Any, text: str, name: str) -> tuple[Located | None, list[Finding]]:
    if not isinstance(data, dict):
        kind = "nothing" if data is None else "a list" if isinstance(data, list) else "one value"
        return None, [Finding("HL600", f"the file holds {kind} where keys belong", Place(name), "write a mapping")]
    places: dict[Path, Place] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _note_places(root, (), name, places)
    except (yaml.YAMLError, RecursionError):
        places.clear()  # what YAML reads otherwise than JSON is named by its file alone
    return Located(name, data, places), []


def _note_places(node: yaml.Node, path: Path, name: str, places: dict[Path, Place]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            places[here] = Place(name, key.start_mark.line + 1, key.start_mark.column + 1)
            _note_places(value, here, name, places)
