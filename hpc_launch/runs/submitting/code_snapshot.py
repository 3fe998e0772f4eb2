"""Copy the training's code into the run folder: all attempts run this copy, whatever is edited meanwhile.

Of a git work tree, the files that git does not ignore are copied; of another folder, all. Code is small: large files
and large folders (data, a virtual environment) are linked instead, as what git ignores and its own folder, so that
relative paths from the script stay valid.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from hpc_launch.agent.folders import is_private, is_skipped
from hpc_launch.base.json_records import write_record
from hpc_launch.base.run_program import commit_of, not_ignored
from hpc_launch.plan.recorded_parts import CodePlan
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import CodeInfo

LARGE_FILE = 1 << 20
"""Larger files (bytes) are linked: code is smaller."""
LARGE_FOLDER = 1000
"""Folders with more entries are linked."""
MAX_ENTRIES = 20_000
"""Nothing is copied if there are more entries in all."""

_COPIED_MODE = 0o755
"""Permissions that a copy may keep: the job runs it, so nobody else may change it."""


class _TooMuchError(Exception):
    """The folder holds more than code."""


class _Copy:
    def __init__(self, run: RunFolder, root: Path, exclude: Sequence[str], limit: int) -> None:
        self._runs = os.path.realpath(run.path.parent)
        self._root, self._listed = root, not_ignored(root)
        self._exclude = exclude
        self._limit = limit
        self.entries = self.files = self.bytes = 0
        self.linked: list[str] = []

    def folder(self, source: Path, target: Path) -> None:
        """Copy a folder with all below it. Raises OSError, _TooMuchError."""
        target.mkdir(mode=0o700)
        with os.scandir(source) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        self.entries += len(entries)
        if self.entries > MAX_ENTRIES:
            raise _TooMuchError(f"it has more than {MAX_ENTRIES} entries")
        for entry in entries:
            of_git = source == self._root and entry.name == ".git"  # a program may ask it for the commit
            if is_skipped(entry.name) and not of_git:
                continue
            here = target / entry.name
            if of_git or self._is_linked(entry):
                os.symlink(os.path.abspath(entry.path), here)
                self.linked.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                self.folder(Path(entry.path), here)
            else:
                self._file(entry, here)
        target.chmod(stat.S_IMODE(source.stat().st_mode) & _COPIED_MODE | 0o700)

    def _is_linked(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_symlink() or any(fnmatchcase(entry.name, pattern) for pattern in self._exclude):
            return True
        ignored = self._listed is not None and os.path.relpath(entry.path, self._root) not in self._listed
        if ignored or is_private(entry.name):
            return True
        if entry.is_dir():
            inside = os.listdir(entry.path)
            runs = os.path.realpath(entry.path) == self._runs or RunFolder(Path(entry.path)).exists
            return runs or "pyvenv.cfg" in inside or len(inside) > LARGE_FOLDER
        return not entry.is_file() or entry.stat().st_size > LARGE_FILE

    def _file(self, entry: os.DirEntry[str], target: Path) -> None:
        self.files += 1
        self.bytes += entry.stat().st_size
        if self.bytes > self._limit:
            raise _TooMuchError(f"it comes to more than {self._limit >> 20} MiB")
        shutil.copy2(entry.path, target)
        target.chmod(stat.S_IMODE(target.stat().st_mode) & _COPIED_MODE)


def take_snapshot(run: RunFolder, code: CodePlan | None) -> None:
    """Copy the code folder to `code/` and record it in code.json. Raises OSError where those cannot be written.

    A folder that is unreadable or too large is not copied: code.json says why, and the script runs from where it is.
    """
    if code is None:
        return
    root = Path(code.root)
    copy = _Copy(run, root, code.exclude, code.limit_mib << 20)
    why: str | None = None
    try:
        copy.folder(root, run.code)
    except (_TooMuchError, PermissionError, FileNotFoundError) as error:
        shutil.rmtree(run.code, ignore_errors=True)
        why = str(error)
    info = CodeInfo(
        root=code.root,
        commit=commit_of(root),
        kept=why is None,
        why=why,
        files=copy.files,
        bytes=copy.bytes,
        linked=tuple(copy.linked[:100]),
    )
    write_record(run.code_info, info, sync=False)
