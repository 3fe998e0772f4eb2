"""Another program's configuration file: the place of every value, types of values, and names of keys.

A type is that of the value which hpc-launch itself writes for the key, so there is no table of types. Names are those
that an installed library lists, which also says whether it accepts a file (library_scripts/ask_library.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from msgspec import Struct

from hpc_launch.base.files import read_text
from hpc_launch.base.findings import Finding, FindingCode, Place, Severity
from hpc_launch.base.run_program import run_program
from hpc_launch.job.document import KeyPath
from hpc_launch.job.type_hints import nearest
from hpc_launch.job.yaml_source import parse_document

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

    def place(self, *path: str | int) -> Place:
        """The place of a key, else of the mapping around it, else the file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return Place(self.name)

    def finding(
        self, code: FindingCode, message: str, path: KeyPath, hint: str | None, severity: Severity = "error"
    ) -> Finding:
        """A finding at a key."""
        return Finding(code, message, self.place(*path), hint, severity)


def _unreadable(message: str, place: Place, hint: str) -> tuple[None, list[Finding]]:
    return None, [Finding(FindingCode.UNREADABLE_CONFIG, message, place, hint)]


def read(path: str | os.PathLike[str]) -> tuple[str | None, list[Finding]]:
    """Read a file's text; HL600 if that fails."""
    try:
        return read_text(Path(path), longest=MAX_BYTES).removeprefix("\ufeff"), []
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()
        hint = f"name a configuration file of at most {MAX_BYTES >> 10} KiB that you can read"
        return _unreadable(f"cannot read the file: {reason}", Place(os.fspath(path)), hint)


def parse(text: str, name: str, *, is_yaml: bool) -> tuple[ConfigFile | None, list[Finding]]:
    """Parse a file as its reader does: with `yaml.safe_load`, or strictly as JSON; HL600 if invalid.

    DeepSpeed alone also accepts comments in JSON.
    """
    try:
        data = _yaml(text) if is_yaml else json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        place = Place(name, error.lineno, error.colno)
        hint = "JSON allows no comments and no comma after the last value; write true, false and null in lower case"
        return _unreadable(f"invalid JSON: {error.msg.lower()}", place, hint)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name)
        problem = getattr(error, "problem", None) or "cannot parse it"
        return _unreadable(f"invalid YAML: {problem}", place, "check quotes, colons and indentation")
    except RecursionError:
        return _unreadable("the values are nested too deeply", Place(name), "nest less")
    except ValueError as error:
        return _unreadable(f"cannot parse the file: {error}", Place(name), "write each key once, and numbers in full")
    if not isinstance(data, dict):
        kind = "is empty" if data is None else "holds a list" if isinstance(data, list) else "holds a single value"
        return _unreadable(f"the file {kind}", Place(name), "write a mapping of keys to values")
    # JSON is YAML except for tabs; replacing each by one space keeps the columns.
    document, _ = parse_document(text if is_yaml else text.replace("\t", " "), name)
    return ConfigFile(name, data, document.key_places if document is not None else {}), []


def _yaml(text: str) -> Any:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:  # PyYAML's time grows with its square
            raise RecursionError
        if isinstance(event, yaml.AliasEvent):
            # A few lines of aliases can expand to more values than fit into memory.
            raise yaml.MarkedYAMLError(None, None, "aliases are not supported here", event.start_mark)  # type: ignore[arg-type]
    return yaml.safe_load(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key `{key}`")
        result[key] = value
    return result


Kind = Literal["bool", "int", "number", "text", "object", "any"]
"""The type of a value. `int` includes 5e8, as in DeepSpeed."""

_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "number", str: "text", dict: "object"}
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "number": "a number",
    "text": "a string",
    "object": "a mapping",
}


LibraryKeys = Mapping[str, tuple[str, ...]]
"""The keys that an installed library reads, by the dotted name of their mapping; '' is the file itself."""


def kinds_of(example: Mapping[str, Any], path: KeyPath = ()) -> dict[KeyPath, Kind]:
    """The kind of every value of an example, by its path."""
    kinds: dict[KeyPath, Kind] = {}
    for key, value in example.items():
        kinds[(*path, key)] = _KINDS.get(type(value), "any")
        if isinstance(value, dict):
            kinds |= kinds_of(value, (*path, key))
    return kinds


def check_kinds(file: ConfigFile, kinds: Mapping[KeyPath, Kind], *, auto: bool = False) -> Iterator[Finding]:
    """Report values of another kind. `auto`: whether this word may stand in place of any value."""
    for path, kind in kinds.items():
        value = file.get(path)
        if not fits(value, kind) and not (auto and value == "auto"):
            message = f"`{path[-1]}` must be {_WORDS[kind]}, not {shorten(value)}"
            hint = "write it without quotes" if isinstance(value, str) and kind in {"bool", "int", "number"} else None
            yield Finding(FindingCode.INVALID_CONFIG_VALUE, message, file.place(*path), hint)


def check_names(file: ConfigFile, keys: LibraryKeys, unknown: Mapping[str, str], prefix: str = "") -> Iterator[Finding]:
    """Report the keys that the library does not know; each may have the prefix or not.

    `unknown`: what the library does with such a key of the mapping of that name; `*` of all others.
    """
    for name, known in keys.items():
        path = path_of(name)
        mapping = file.get(path)
        plain = {key.removeprefix(prefix): key for key in known}
        for key in mapping if isinstance(mapping, dict) else ():
            bare = str(key).removeprefix(prefix)
            if bare in plain:
                continue
            near = nearest(bare, list(plain))
            hint = f"did you mean `{plain[near]}`?" if near else f"known keys: {', '.join(known)}"
            message = f"unknown key `{key}`{f' in `{name}`' if name else ''}: {unknown.get(name, unknown['*'])}"
            yield Finding(FindingCode.UNKNOWN_CONFIG_KEY, message, file.place(*path, key), hint)


def path_of(name: str) -> KeyPath:
    """The path of a dotted name."""
    return tuple(name.split(".")) if name else ()


def fits(value: Any, kind: Kind) -> bool:
    """Whether a value is of a kind. null always fits: it means the default."""
    if value is None or kind == "any":
        return True
    if kind == "bool":
        return isinstance(value, bool)
    if kind in {"int", "number"}:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or value == value // 1)
    return isinstance(value, str if kind == "text" else dict)


def shorten(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


Library = Literal["deepspeed", "accelerate", "transformers"]

_SCRIPT = Path(__file__).parent / "library_scripts" / "ask_library.py"
_ERROR = re.compile(r"^(?=[\w.]+(?:Error|Exception)\b)", re.MULTILINE)
_MARK = "HPC-LAUNCH-KEYS "
"""Begins the line with the keys: libraries print lines of their own."""


LIBRARY_TIMEOUT_S = 120
"""An environment on a parallel file system may take a minute to import torch for the first time."""
_QUIET = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
"""No GPU is looked for, and nothing is downloaded."""


def ask(
    library: Library, text: str, python: str | None, replicas: int | None = None
) -> tuple[LibraryKeys | None, list[Finding]]:
    """The keys that a library reads, and what it says about a file; None if it is not installed or cannot be asked.

    It is imported in a Python of its own: that takes seconds, prints, and needs torch.

    Args: python: the Python that has the library, else this one. replicas: the data-parallel size, for DeepSpeed.
    """
    code = FindingCode.DEEPSPEED_REFUSES if library == "deepspeed" else FindingCode.ACCELERATE_REFUSES
    command = [python or sys.executable, "-W", "ignore", str(_SCRIPT), library, text, str(replicas or 0)]
    done, reason, keys = None, "", None
    try:
        done = run_program(command, LIBRARY_TIMEOUT_S, environment=os.environ | _QUIET)
    except OSError as error:
        reason = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        reason = f"timed out after {LIBRARY_TIMEOUT_S} s"
    for line in done.stdout.splitlines() if done is not None else ():
        if line.startswith(_MARK):
            keys = msgspec.json.decode(line.removeprefix(_MARK), type=dict[str, tuple[str, ...]])
    if done is not None and done.returncode == 0:
        return keys, []
    if done is not None:
        # The error of Python is the last one; pydantic's has several lines.
        last = _ERROR.split(done.stderr.strip())[-1]
        lines = [" ".join(last.split())] if _ERROR.match(last) else last.splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}, without a message"
    if keys is not None and "ImportError" not in reason:
        hint = "the installed release does not accept this file; a newer one may have options unknown to hpc-launch"
        return keys, [Finding(code, f"{library} refuses the file: {reason}", Place(library), hint)]
    if python is None and reason.startswith("ModuleNotFoundError"):
        return None, []
    return None, [Finding(code, f"cannot run {library}: {reason}", Place(library), None, "warning")]
