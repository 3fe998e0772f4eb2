"""The profiles on the search path with their detection rules, which are read without the rest of each file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert

from hpc_launch.base.files import read_text
from hpc_launch.job.yaml_source import MAX_BYTES, parse_document
from hpc_launch.sites.detection_rules import DetectionRule, Hosts
from hpc_launch.sites.search_path import ENDING, search_path

_TOP_KEY = re.compile(r"^([A-Za-z_]+):", re.MULTILINE)


MAX_FILES = 200
MAX_PROFILE_BYTES = 256 << 10
MAX_DETECT_BYTES = 64 << 10
"""Limits on a folder of others: its files, the size of each, and all its detection rules."""
OWN_LAYERS = frozenset({"user", "machine", "shipped"})


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
    except (OSError, UnicodeDecodeError):
        return []
    document, _ = parse_document((_top_level_block(text, "hosts") or "")[:MAX_DETECT_BYTES], str(path))
    try:
        return convert(document.data.get("hosts") or {}, Hosts).login if document is not None else []
    except ValidationError:
        return []


def candidates(project: Path | None = None) -> Iterator[ProfileCandidate]:
    """The nearest profile of each name on the search path.

    If it has no `detect:`, the rules of the next profile with the same name apply: a team's `juwels` overrides ours.
    """
    nearest_by_name: dict[str, ProfileCandidate] = {}
    for layer, folder in search_path(project):
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(ENDING))
        except OSError:
            continue
        left = None if layer in OWN_LAYERS else MAX_DETECT_BYTES
        for file in names if left is None else names[:MAX_FILES]:
            name = file.removesuffix(ENDING)
            if name in nearest_by_name and (nearest_by_name[name].rules or nearest_by_name[name].fault):
                continue
            rules, fault, size = _rules(folder / file, left)
            left = None if left is None else left - size
            nearest = nearest_by_name.get(name)
            path, where = (nearest.path, nearest.layer) if nearest else (folder / file, layer)
            nearest_by_name[name] = ProfileCandidate(name, path, where, rules, fault)
    yield from nearest_by_name.values()


def _rules(path: Path, most: int | None) -> tuple[tuple[DetectionRule, ...], str | None, int]:
    """Rules of one file, why there are none, and the size of their text, which must not be larger than `most`.

    Parses only that part of the file, because there may be hundreds of files on a slow disk.
    """
    try:
        text = read_text(path, longest=MAX_BYTES if most is None else MAX_PROFILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        return (), str(error), 0
    if "detect" not in text:
        return (), None, 0
    block = _top_level_block(text, "detect") or text
    if most is not None and len(block) > most:
        return (), f"{path}: detect: the rules of this folder exceed {MAX_DETECT_BYTES >> 10} KiB", 0
    rules, fault = _parsed(block, path)
    return rules, fault, len(block)


def _parsed(block: str, path: Path) -> tuple[tuple[DetectionRule, ...], str | None]:
    document, faults = parse_document(block, str(path))
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
