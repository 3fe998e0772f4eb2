"""Read another program's configuration file as that program does, with the place of every value."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from msgspec import Struct

from hpc_launch.base.files import open_regular
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import KeyPath

MAX_BYTES = 256 * 1024
_DEEPEST = 100


class ConfigFile(Struct, frozen=True):
    """A file's values and the place of each key. `name` is the file of all places."""

    name: str
    data: dict[str, Any]
    places: Mapping[KeyPath, Place]

    def get(self, path: KeyPath) -> Any:
        """The value at a path; None if there is none."""
        value: Any = self.data
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def find(self, paths: Iterable[KeyPath]) -> list[KeyPath]:
        """Those of the paths that are in the file."""
        return [path for path in paths if isinstance(held := self.get(path[:-1]), dict) and path[-1] in held]

    def place(self, *path: str | int) -> Place:
        """The place of a key, else of the mapping around it, else the file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return Place(self.name)


class _DuplicateKey(ValueError):
    """A key occurs twice in one mapping."""


def _unreadable(message: str, place: Place, hint: str) -> tuple[None, list[Finding]]:
    return None, [Finding(FindingCode.UNREADABLE_CONFIG, message, place, hint)]


def read(path: str | os.PathLike[str]) -> tuple[str | None, list[Finding]]:
    """Read a file's text; HL600 if that fails."""
    place = Place(os.fspath(path))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            # Opening a pipe without a writer blocks forever.
            return _unreadable("not a regular file", place, "name the file itself")
        with open_regular(path) as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return _unreadable("the file is larger than 256 KiB", place, "name a configuration file")
        return content.decode("utf-8-sig"), []
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return _unreadable(f"cannot read the file: {reason}", place, "check its path and permissions")
    except UnicodeDecodeError:
        return _unreadable("the file is not UTF-8", place, "save it as UTF-8")


def parse_json(text: str, name: str) -> tuple[ConfigFile | None, list[Finding]]:
    """Parse a JSON object strictly, as Hugging Face does. (DeepSpeed alone also accepts comments.)"""
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except _DuplicateKey as error:
        return _unreadable(f"duplicate key `{error}`", Place(name), "keep one of the two")
    except json.JSONDecodeError as error:
        place = Place(name, error.lineno, error.colno)
        hint = "JSON allows no comments and no comma after the last value; write true, false and null in lower case"
        return _unreadable(f"invalid JSON: {error.msg.lower()}", place, hint)
    except (RecursionError, ValueError):
        return _unreadable("cannot parse the JSON", Place(name), "nest less; use shorter numbers")
    # JSON is YAML except for tabs; replacing each by one space keeps the columns.
    return _with_places(data, text.replace("\t", " "), name)


def parse_yaml(text: str, name: str) -> tuple[ConfigFile | None, list[Finding]]:
    """Parse a YAML mapping with `yaml.safe_load`, as Accelerate does."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:  # PyYAML's time grows with its square
                raise RecursionError
            if isinstance(event, yaml.AliasEvent):
                # A few lines of aliases can expand to more values than fit into memory.
                place = _of_mark(event.start_mark, name)
                return _unreadable("aliases are not supported here", place, "write the value out")
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        place = _of_mark(getattr(error, "problem_mark", None), name)
        problem = getattr(error, "problem", None) or "cannot parse it"
        return _unreadable(f"invalid YAML: {problem}", place, "check quotes, colons and indentation")
    except (RecursionError, ValueError):
        return _unreadable("cannot parse the YAML", Place(name), "nest less; use shorter numbers")
    return _with_places(data, text, name)


def _of_mark(mark: Any, name: str) -> Place:
    return Place(name, mark.line + 1, mark.column + 1) if mark else Place(name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKey(key)
        result[key] = value
    return result


def _with_places(data: Any, text: str, name: str) -> tuple[ConfigFile | None, list[Finding]]:
    if not isinstance(data, dict):
        kind = "is empty" if data is None else "holds a list" if isinstance(data, list) else "holds a single value"
        return _unreadable(f"the file {kind}", Place(name), "write a mapping of keys to values")
    places: dict[KeyPath, Place] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _note_places(root, (), name, places)
    except (yaml.YAMLError, RecursionError):
        places.clear()  # if YAML parses the text differently from JSON, places name only the file
    return ConfigFile(name, data, places), []


def _note_places(node: yaml.Node, path: KeyPath, name: str, places: dict[KeyPath, Place]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            places[here] = _of_mark(key.start_mark, name)
            _note_places(value, here, name, places)
