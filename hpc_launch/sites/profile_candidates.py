"""The profiles on the search path with their detection rules, which are read without the rest of each file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert

from hpc_launch.base.files import read_text
from hpc_launch.job.yaml_source import MAX_BYTES, parse_document
from hpc_launch.sites.detection_rules import DetectionRule, Hosts
from hpc_launch.sites.search_path import MAX_PROFILE_BYTES, ProfileFile, profile_files

_TOP_KEY = re.compile(r"^([A-Za-z_]+):", re.MULTILINE)


class ProfileCandidate(Struct, frozen=True):
    """A profile on the search path with its detection rules."""

    name: str
    path: Path
    layer: str
    rules: tuple[DetectionRule, ...]
    fault: str | None = None
    """Why its rules could not be read."""


def login_hosts(path: Path) -> list[str]:
    """Patterns of the login host names in a profile; none if the file cannot be read."""
    try:
        text = read_text(path, longest=MAX_PROFILE_BYTES)
        document, _ = parse_document(_top_level_block(text, "hosts") or "", str(path))
        return convert(document.data.get("hosts") or {}, Hosts).login if document is not None else []
    except (OSError, UnicodeDecodeError, ValidationError):
        return []


def candidates(project: Path | None = None) -> Iterator[ProfileCandidate]:
    """The nearest profile of each name on the search path.

    If it has no `detect:`, the rules of the next profile with the same name apply: a team's `juwels` overrides ours.
    """
    nearest_by_name: dict[str, ProfileCandidate] = {}
    for file in profile_files(project):
        name = file.path.stem
        nearest = nearest_by_name.get(name) or ProfileCandidate(name, file.path, file.layer, ())
        if not nearest.rules and not nearest.fault:
            rules, fault = _rules(file)
            nearest_by_name[name] = ProfileCandidate(name, nearest.path, nearest.layer, rules, fault)
    yield from nearest_by_name.values()


def _rules(file: ProfileFile) -> tuple[tuple[DetectionRule, ...], str | None]:
    """Rules of one file, and why there are none.

    Parses only that part of the file, because there may be hundreds of files on a slow disk.
    """
    path = file.path
    if file.too_much:
        return (), f"{path}: the files of this folder are too large"
    try:
        text = read_text(path, longest=MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        return (), str(error)
    if "detect" not in text:
        return (), None
    document, faults = parse_document(_top_level_block(text, "detect") or text, str(path))
    if document is None or faults:
        return (), str(faults[0]) if faults else "the file is empty"
    data: Any = document.data.get("detect") or []
    try:
        rules = convert(data, list[DetectionRule])
    except ValidationError as error:
        return (), f"{path}: detect: {error}"
    # A rule without keys would match every machine.
    return tuple(rule for rule in rules if rule != DetectionRule()), None


def _top_level_block(text: str, key: str) -> str | None:
    """Lines of a top-level key, or None if the file has no such lines."""
    starts = list(_TOP_KEY.finditer(text))
    for at, match in enumerate(starts):
        if match[1] == key:
            end = starts[at + 1].start() if at + 1 < len(starts) else len(text)
            return text[match.start() : end]
    return None
