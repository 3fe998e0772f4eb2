"""Find the newest complete checkpoint of a run, from which the next attempt resumes.

    python3 -I agent.pyz checkpoints FOLDER PATTERN [--complete NAME]... [--latest FILE]

Prints the step (empty where names have none) and the path, each with a NUL after it; nothing if there is none. A
checkpoint that a killed job left incomplete is skipped.
"""

import argparse
import os
import re
import signal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from hpc_launch.agent import open_regular, say

ZIP_HEAD, ZIP_END, ZIP_END_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22
"""torch.save writes zip files without a comment: the last 22 bytes of a complete file are its end record."""
LIMIT_S = 300
LONGEST_NAME = 255
"""Of a file, in bytes."""


class CheckpointRule(NamedTuple):
    """Where checkpoints are, and how to recognise a complete one (`checkpoint:` of the job file)."""

    folder: Path
    pattern: Any
    """Compiled by `re`, or for the package by RE2, which searches in linear time."""
    complete: Tuple[str, ...] = ()
    latest: Optional[str] = None


class CheckpointFound(NamedTuple):
    """A checkpoint. `time`: when its last part was written, in seconds since the epoch."""

    path: Path
    step: Optional[int]
    """None where the pattern has no group for it."""
    time: float


def newest_complete(rule: CheckpointRule) -> Optional[CheckpointFound]:
    """The newest complete checkpoint. An incomplete one is skipped for the one before it. Never raises."""
    return next((found for found in newest_first(rule) if why_incomplete(rule, found) is None), None)


def newest_first(rule: CheckpointRule) -> List[CheckpointFound]:
    """All checkpoints by name, incomplete ones too: by step, or by time where names have no step.

    Of two with the same step or the same second, the one with the greater name counts.
    """
    found = {}
    for entry in sorted(entries(rule.folder), key=lambda entry: os.fsencode(entry.name)):
        match = rule.pattern.fullmatch(printable(entry.name))
        word = match.group(1) if match is not None and rule.pattern.groups else None
        if match is None or (rule.pattern.groups and not is_step(word)):
            continue
        path = Path(entry.path)
        key = int(modified(path)) if word is None else int(word)
        if key >= 0:  # a time before 1970 is none
            inside = [modified(Path(one.path)) for one in entries(path)] if os.path.isdir(str(path)) else []
            found[key] = CheckpointFound(path, None if word is None else key, max([modified(path), *inside]))
    return [found[key] for key in sorted(found, reverse=True)]


def printable(name: str) -> str:
    """A file name whose bytes are no UTF-8, as text that a pattern can search."""
    return os.fsencode(name).decode("utf-8", "replace")


def shown(text: str) -> str:
    """A text with names of files, for a terminal: escape sequences have no effect."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def is_step(word: Optional[str]) -> bool:
    """Whether a word is the number of a step."""
    return re.match(r"[0-9]{1,17}\Z", word or "") is not None


def why_incomplete(rule: CheckpointRule, found: CheckpointFound) -> Optional[str]:
    """None if all files of the rule exist, and no file by torch.save is truncated."""
    if rule.latest is not None and not _is_in_latest(rule, found):
        return "`%s` (`checkpoint.latest`) does not name it" % rule.latest
    files = list(_files(found.path))
    names = {os.path.relpath(str(path), str(found.path)): path for path in files}
    for wanted in rule.complete:
        if not any(_fits(name, wanted) and size_of(path) for name, path in names.items()):
            return "`%s` (`checkpoint.complete`) is missing or empty" % wanted
    if not files:
        return "it holds no file"
    truncated = next(filter(_is_truncated_zip, files), None)
    return None if truncated is None else "%s is truncated" % truncated.name


def _is_in_latest(rule: CheckpointRule, found: CheckpointFound) -> bool:
    """Whether the file `latest` names this checkpoint or one of a later step."""
    try:
        with open_regular(rule.folder / (rule.latest or "")) as stream:
            named = stream.read(1 << 16).decode("utf-8", "replace").split("\n", 1)[0].strip()
    except OSError:
        return False
    if found.path.name == named:
        return True
    match = rule.pattern.fullmatch(named[:LONGEST_NAME])
    if match is None or not rule.pattern.groups or found.step is None:
        return False
    return is_step(match.group(1)) and found.step < int(match.group(1))


def _fits(name: str, wanted: str) -> bool:
    # Only `*` is special, and it does not match `/`.
    return name.count("/") == wanted.count("/") and all(
        fnmatchcase(part, re.sub(r"([\[?])", r"[\1]", pattern))
        for part, pattern in zip(name.split("/"), wanted.split("/"))
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
    if os.path.isfile(str(path)):
        yield path
        return
    for folder, _, names in os.walk(str(path)):
        for name in names:
            if os.path.isfile(os.path.join(folder, name)):
                yield Path(folder, name)


def modified(path: Path) -> float:
    """When a file was last written; 0 if it cannot be read."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def size_of(path: Path) -> int:
    """The bytes of a file; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def entries(folder: Path) -> "List[os.DirEntry[str]]":
    """What is in a folder, except for hidden files; nothing if it cannot be read."""
    try:
        with os.scandir(str(folder)) as found:
            return [entry for entry in found if not entry.name.startswith(".")]
    except OSError:
        return []


def main(words: List[str]) -> int:
    """Print the newest complete checkpoint, and say which ones are skipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pattern", type=re.compile)
    parser.add_argument("--complete", action="append", default=[])
    parser.add_argument("--latest")
    args = parser.parse_args(words)
    signal.alarm(LIMIT_S)
    rule = CheckpointRule(args.folder, args.pattern, tuple(args.complete), args.latest)
    for found in newest_first(rule):
        why = why_incomplete(rule, found)
        if why is None:
            os.write(1, b"%s\0%s\0" % (b"" if found.step is None else b"%d" % found.step, os.fsencode(str(found.path))))
            break
        say("skipped %s: this checkpoint is incomplete: %s" % (shown(found.path.name), shown(why)))
    return 0
