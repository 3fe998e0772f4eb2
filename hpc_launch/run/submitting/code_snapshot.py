"""The copy of the training's code in the run folder: what all attempts run, whatever is edited meanwhile.

Code is small. What is large or many (data, a virtual environment) is linked, so that a path beside the script still
leads there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hpc_launch.base.files import read_text, write_json
from hpc_launch.run.layout import RunFolder

LARGE = 1 << 20
"""A file over this is linked: code is smaller."""
MANY = 1000
"""So are folders with more entries."""
MOST = 20_000
"""Nothing is copied where the folder has more entries than this."""

PASSED_OVER = ("__pycache__", ".git", ".hg", ".svn", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")

PRIVATE = (".env", ".env.*", "*.pem", "*.key", "secrets.*")
"""What may hold a secret stays where it is, and is linked."""


class _TooMuchError(Exception):
    """The folder is no folder of code."""


class _Copy:
    def __init__(self, run: RunFolder, exclude: Sequence[str], limit: int) -> None:
        self._runs = os.path.realpath(run.path.parent)
        self._exclude = exclude
        self._limit = limit
        self.entries = self.files = self.bytes = 0
        self.linked: list[str] = []

    def folder(self, source: Path, target: Path) -> None:
        """Copy a folder with all below it. Raises OSError, _TooMuchError."""
        target.mkdir()
        with os.scandir(source) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        self.entries += len(entries)
        if self.entries > MOST:
            raise _TooMuchError(f"it has more than {MOST} entries")
        for entry in entries:
            if any(fnmatchcase(entry.name, pattern) for pattern in PASSED_OVER):
                continue
            here = target / entry.name
            if self._is_linked(entry):
                os.symlink(os.path.abspath(entry.path), here)
                self.linked.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                self.folder(Path(entry.path), here)
            else:
                self._file(entry, here)

    def _is_linked(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_symlink() or any(fnmatchcase(entry.name, pattern) for pattern in (*self._exclude, *PRIVATE)):
            return True
        if entry.is_dir():
            inside = os.listdir(entry.path)
            runs = os.path.realpath(entry.path) == self._runs or "run.json" in inside
            return runs or "pyvenv.cfg" in inside or len(inside) > MANY
        return not entry.is_file() or entry.stat().st_size > LARGE

    def _file(self, entry: os.DirEntry[str], target: Path) -> None:
        self.files += 1
        self.bytes += entry.stat().st_size
        if self.bytes > self._limit:
            raise _TooMuchError(f"it comes to more than {self._limit >> 20} MiB")
        shutil.copy2(entry.path, target)


def take_snapshot(run: RunFolder, plan: Mapping[str, Any]) -> None:
    """Copy what `plan["code"]` names to `code/`, and note it in code.json. Raises OSError where that cannot be written.

    What cannot be read, or is too much, is not kept: the note says why, and the script runs from where it lies.
    """
    wanted = plan.get("code")
    if not isinstance(wanted, Mapping):
        return
    root, target = Path(str(wanted["root"])), run.path / "code"
    copy = _Copy(run, [str(name) for name in wanted.get("exclude", [])], int(wanted.get("limit_mib", 100)) << 20)
    note: dict[str, Any] = {"root": str(root), "commit": commit_of(root), "kept": True}
    try:
        copy.folder(root, target)
    except (_TooMuchError, PermissionError, FileNotFoundError) as error:
        shutil.rmtree(target, ignore_errors=True)
        note |= {"kept": False, "why": str(error)}
    write_json(run.path / "code.json", {**note, "files": copy.files, "bytes": copy.bytes, "linked": copy.linked[:100]})


def commit_of(root: Path) -> str | None:
    """The commit that git has checked out there, read from its files; None where that is not known."""
    for folder in (root, *root.parents):
        git = folder / ".git"
        if not git.is_dir():
            continue
        try:
            head = read_text(git / "HEAD").strip()
            name = head.removeprefix("ref: ")
            if name != head and (git / name).is_file():
                head = read_text(git / name).strip()
            elif name != head:
                packed = read_text(git / "packed-refs").splitlines()
                head = next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
        except (OSError, ValueError):
            return None
        return head if re.fullmatch(r"[0-9a-f]{40,64}", head) else None
    return None
