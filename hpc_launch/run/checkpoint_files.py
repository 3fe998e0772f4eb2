"""The newest whole checkpoint of a run, by the rule of its job file: what an attempt would go on from.

`slurm_templates/parts/resume.sh` has the same rule in bash, for the job itself; a test checks that both agree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hpc_launch.base.files import read_json, read_text, without_waiting
from hpc_launch.run.layout import RunFolder

ZIP_HEAD, ZIP_END, ZIP_END_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22
"""torch.save writes zip files without a comment: the last 22 bytes of a whole one are its end record."""


@dataclass(frozen=True)
class CheckpointFound:
    """A checkpoint. `time`: when its last part was written, in seconds since the epoch."""

    path: Path
    step: int | None
    """None where the job's pattern has no group for it."""
    time: float


@dataclass(frozen=True)
class CheckpointRule:
    """Where checkpoints are, and how a whole one is told (`checkpoint:` of the job file)."""

    folder: Path
    pattern: re.Pattern[str]
    complete: tuple[str, ...] = ()
    latest: str | None = None


def newest_checkpoint(run: RunFolder) -> CheckpointFound | None:
    """The newest whole checkpoint; None where there is none, or the job file does not say where they are."""
    rule = rule_of(run)
    return None if rule is None else newest_whole(rule)


def rule_of(run: RunFolder) -> CheckpointRule | None:
    """The rule of the run's newest plan; None where it has none. Never raises."""
    plans = (read_json(attempt.plan) for attempt in reversed(run.attempts()))
    wanted = next((plan for plan in plans if plan is not None), {}).get("checkpoint")
    if not isinstance(wanted, Mapping):
        return None
    return _rule(wanted, run)


def near_miss(run: RunFolder) -> str | None:
    """What is wrong with the job's pattern where it fits no name whole, but the beginning of one; None otherwise.

    That is how a pattern for `step-10` misses `step-10.pt`. A name on `.tmp` is what a training was just writing.
    """
    rule = rule_of(run)
    if rule is None or newest_first(rule):
        return None
    near = [entry for entry in _entries(rule.folder) if rule.pattern.match(entry.name)]
    paths = [Path(entry.path) for entry in near if not entry.name.endswith(".tmp")]
    if not paths:
        return None
    newest = max(paths, key=_modified)
    return f"`checkpoint.pattern` ({rule.pattern.pattern}) has to match the whole of {newest.name}"


def newest_whole(rule: CheckpointRule) -> CheckpointFound | None:
    """The newest checkpoint that is whole. A torn one is passed over for the one before it. Never raises."""
    return next((found for found in newest_first(rule) if is_whole(rule, found)), None)


def newest_first(rule: CheckpointRule) -> list[CheckpointFound]:
    """All that look like checkpoints by their names, torn ones too: by step, or by time where names tell no step.

    Of two with the same step, or of the same second, the one with the greater name counts, as in the job.
    """
    found: dict[int, CheckpointFound] = {}
    for entry in sorted(_entries(rule.folder), key=lambda entry: os.fsencode(entry.name)):
        match = rule.pattern.fullmatch(entry.name)
        if match is None:
            continue
        step = match[1] if rule.pattern.groups else None
        if step is not None and not (step.isascii() and step.isdecimal() and len(step) < 18):
            continue
        path = Path(entry.path)
        key = int(_modified(path)) if step is None else int(step)
        found[key] = CheckpointFound(path, None if step is None else int(step), _written(path))
    return [found[key] for key in sorted(found, reverse=True)]


def is_whole(rule: CheckpointRule, found: CheckpointFound) -> bool:
    """Whether all files that the rule asks for are there, and no file of torch.save lacks its end."""
    if rule.latest is not None and not _vouched(rule, found):
        return False
    files = list(_files(found.path))
    names = {os.path.relpath(path, found.path): path for path in files}
    for wanted in rule.complete:
        if not any(_fits(name, wanted) and _size(path) for name, path in names.items()):
            return False
    return bool(files) and not any(map(_torn_zip, files))


def _vouched(rule: CheckpointRule, found: CheckpointFound) -> bool:
    """Whether the file `latest` stands for this checkpoint: it names this one, or one of a later step."""
    try:
        named = read_text(rule.folder / (rule.latest or ""), errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return False
    match = rule.pattern.fullmatch(named)
    if found.path.name == named:
        return True
    if match is None or not rule.pattern.groups or found.step is None:
        return False
    return match[1].isdecimal() and len(match[1]) < 18 and found.step < int(match[1])


def _fits(name: str, wanted: str) -> bool:
    # Only `*` is special, and it stops at a folder's end, as in bash.
    return name.count("/") == wanted.count("/") and all(
        fnmatchcase(part, re.sub(r"([\[?])", r"[\1]", pattern))
        for part, pattern in zip(name.split("/"), wanted.split("/"), strict=True)
    )


def _torn_zip(path: Path) -> bool:
    try:
        with open(path, "rb", opener=without_waiting) as stream:
            if stream.read(len(ZIP_HEAD)) != ZIP_HEAD:
                return False
            stream.seek(-min(ZIP_END_SIZE, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            return not stream.read().startswith(ZIP_END)
    except OSError:
        return True


def _files(path: Path) -> Iterator[Path]:
    """The files of a checkpoint: itself, or all below the folder that it is."""
    if path.is_file():
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (file for name in names if (file := Path(folder, name)).is_file())


def _written(path: Path) -> float:
    inside = [_modified(Path(entry.path)) for entry in _entries(path)] if path.is_dir() else []
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


def _rule(wanted: Mapping[str, Any], run: RunFolder) -> CheckpointRule | None:
    parts, complete, latest = wanted.get("dir"), wanted.get("complete", []), wanted.get("latest")
    if not isinstance(parts, list) or not parts or not isinstance(complete, list):
        return None
    try:
        pattern = re.compile(str(wanted.get("pattern")))
    except (re.error, RecursionError, OverflowError):
        return None
    # A null stands for the run folder, which nobody knew when the plan was made.
    folder = Path("".join(str(run.path) if part is None else str(part) for part in parts))
    return CheckpointRule(folder, pattern, tuple(map(str, complete)), latest if isinstance(latest, str) else None)
