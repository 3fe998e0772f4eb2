"""Find the newest complete checkpoint of a run, from which the next attempt resumes.

`slurm_templates/parts/resume.sh` has the same rule in bash, for the job itself; a test checks that both agree.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hpc_launch.base.files import open_regular, read_text
from hpc_launch.base.patterns import compiled
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import newest_plan

ZIP_HEAD, ZIP_END, ZIP_END_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22
"""torch.save writes zip files without a comment: the last 22 bytes of a complete file are its end record."""

TENSOR_FILES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npz"})
"""Endings of files with tensors."""
LONGEST_NAME = 255
"""Of a file, in bytes."""
MOST_LOOKED_AT = 50
"""So many entries of a folder are looked at to find files with tensors."""


@dataclass(frozen=True)
class CheckpointFound:
    """A checkpoint. `time`: when its last part was written, in seconds since the epoch."""

    path: Path
    step: int | None
    """None where the pattern has no group for it."""
    time: float


@dataclass(frozen=True)
class CheckpointRule:
    """Where checkpoints are, and how to recognise a complete one (`checkpoint:` of the job file)."""

    folder: Path
    pattern: re.Pattern[str]
    complete: tuple[str, ...] = ()
    latest: str | None = None


def newest_checkpoint(run: RunFolder) -> CheckpointFound | None:
    """The newest complete checkpoint; None where there is none, or the job file does not say where they are."""
    rule = rule_of(run)
    return None if rule is None else newest_complete(rule)


def rule_of(run: RunFolder) -> CheckpointRule | None:
    """The rule of the run's newest plan; None where it has no valid one. Never raises.

    None for another user's run, too, which may name any folder of this user or a very large one.
    """
    if run.is_foreign:
        return None
    plan = newest_plan(run)
    record = plan.checkpoint if plan is not None else None
    if record is None or not record.dir:
        return None
    try:
        pattern = compiled(record.pattern)
    except re.error:
        return None
    return CheckpointRule(record.folder(run), pattern, record.complete, record.latest)


def near_miss(run: RunFolder, since: float = 0.0, until: float = math.inf) -> str | None:
    """Why there is no complete checkpoint by the job's rule, where there are files that look like one; None otherwise.

    For example, a pattern for `step-10` misses `step-10.pt`. The most similar name is named. Names ending in `.tmp` are
    being written and ignored, and so is what was last written before `since` or after `until` (seconds since the
    epoch).
    """
    rule = rule_of(run)
    if rule is None:
        return None
    named = newest_first(rule)
    if named:
        newest = named[0]
        why = _why_incomplete(rule, newest) if since <= newest.time <= until else None
        return f"{newest.path.name} is incomplete: {why}" if why and newest_complete(rule) is None else None
    own = {run.attempts_folder, run.code, run.hooks, run.journal}
    paths = [path for entry in _entries(rule.folder) if (path := Path(entry.path)) not in own]
    paths = [path for path in paths if not path.name.endswith(".tmp") and since <= _modified(path) <= until]
    near = [path for path in paths if rule.pattern.match(_printable(path.name))]
    text = f"`checkpoint.pattern` ({rule.pattern.pattern})"
    if near:
        return f"{text} has to match the whole of {max(near, key=_modified).name}"
    alike = [path for path in sorted(paths, key=_modified, reverse=True)[:MOST_LOOKED_AT] if _holds_tensors(path)]
    if not alike:
        return None
    closest = max(alike, key=lambda path: (_similarity(path.name, rule.pattern.pattern), _modified(path)))
    return f"{text} matches none of the files in {rule.folder}; the closest is {closest.name}"


def _similarity(name: str, pattern: str) -> float:
    """How similar a name is to those that a pattern matches, from 0 to 1."""
    from difflib import SequenceMatcher

    example = re.sub(r"\\d|\[0-9\]", "0", pattern)
    plain = re.sub(r"[^0-9A-Za-z_=-]", "", example)
    return SequenceMatcher(None, re.sub(r"\d+", "0", name), plain).ratio()


def _holds_tensors(path: Path) -> bool:
    """Whether a file, or a file in a folder, is named like one with tensors, or was written by torch.save."""
    files = [Path(entry.path) for entry in _entries(path)[:MOST_LOOKED_AT]] if os.path.isdir(path) else [path]
    return any(file.suffix in TENSOR_FILES or (os.path.isfile(file) and _head(file) == ZIP_HEAD) for file in files)


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            return stream.read(len(ZIP_HEAD))
    except OSError:
        return b""


def newest_complete(rule: CheckpointRule) -> CheckpointFound | None:
    """The newest complete checkpoint. An incomplete one is skipped for the one before it. Never raises."""
    return next((found for found in newest_first(rule) if is_complete(rule, found)), None)


def is_writing(run: RunFolder) -> bool:
    """Whether the newest checkpoint of a run is incomplete."""
    rule = rule_of(run)
    newest = next(iter(newest_first(rule)), None) if rule is not None else None
    return rule is not None and newest is not None and not is_complete(rule, newest)


def newest_first(rule: CheckpointRule) -> list[CheckpointFound]:
    """All checkpoints by name, incomplete ones too: by step, or by time where names have no step.

    Of two with the same step or the same second, the one with the greater name counts, as in the script.
    """
    found: dict[int, CheckpointFound] = {}
    for entry, match in _named(rule):
        step = match[1] if rule.pattern.groups else None
        if step is not None and not (step.isascii() and step.isdecimal() and len(step) < 18):
            continue
        path = Path(entry.path)
        key = int(_modified(path)) if step is None else int(step)
        if key < 0:  # a time before 1970
            continue
        found[key] = CheckpointFound(path, None if step is None else int(step), _written(path))
    return [found[key] for key in sorted(found, reverse=True)]


def _named(rule: CheckpointRule) -> list[tuple[os.DirEntry[str], re.Match[str]]]:
    """The entries whose names match, by name."""
    entries = sorted(_entries(rule.folder), key=lambda entry: os.fsencode(entry.name))
    return [(entry, match) for entry in entries if (match := rule.pattern.fullmatch(_printable(entry.name)))]


def _printable(name: str) -> str:
    """A file name whose bytes are no UTF-8, as text that a pattern can search."""
    return os.fsencode(name).decode(errors="replace")


def is_complete(rule: CheckpointRule, found: CheckpointFound) -> bool:
    """Whether all files of the rule exist, and no file by torch.save is truncated."""
    return _why_incomplete(rule, found) is None


def _why_incomplete(rule: CheckpointRule, found: CheckpointFound) -> str | None:
    if rule.latest is not None and not _is_in_latest(rule, found):
        return f"`{rule.latest}` (`checkpoint.latest`) does not name it"
    files = list(_files(found.path))
    names = {os.path.relpath(path, found.path): path for path in files}
    for wanted in rule.complete:
        if not any(_fits(name, wanted) and _size(path) for name, path in names.items()):
            return f"`{wanted}` (`checkpoint.complete`) is missing or empty"
    if not files:
        return "it holds no file"
    truncated = next(filter(_is_truncated_zip, files), None)
    return None if truncated is None else f"{truncated.name} is truncated"


def _is_in_latest(rule: CheckpointRule, found: CheckpointFound) -> bool:
    """Whether the file `latest` names this checkpoint or one of a later step."""
    try:
        named = read_text(rule.folder / (rule.latest or ""), errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return False
    if found.path.name == named:
        return True
    match = rule.pattern.fullmatch(named[:LONGEST_NAME])
    if match is None or not rule.pattern.groups or found.step is None:
        return False
    return match[1].isdecimal() and len(match[1]) < 18 and found.step < int(match[1])


def _fits(name: str, wanted: str) -> bool:
    # Only `*` is special, and it does not match `/`, as in bash.
    return name.count("/") == wanted.count("/") and all(
        fnmatchcase(part, re.sub(r"([\[?])", r"[\1]", pattern))
        for part, pattern in zip(name.split("/"), wanted.split("/"), strict=True)
    )


def _is_truncated_zip(path: Path) -> bool:
    try:
        with open_regular(path) as stream:
            if stream.read(len(ZIP_HEAD)) != ZIP_HEAD:
                return False
            stream.seek(-min(ZIP_END_SIZE, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            return not stream.read().startswith(ZIP_END)
    except OSError:
        return True


def _files(path: Path) -> Iterator[Path]:
    """The files of a checkpoint, which is a file or a folder."""
    if os.path.isfile(path):
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (file for name in names if os.path.isfile(file := Path(folder, name)))


def _written(path: Path) -> float:
    inside = [_modified(Path(entry.path)) for entry in _entries(path)] if os.path.isdir(path) else []
    return max([_modified(path), *inside])


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return []
