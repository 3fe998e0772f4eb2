"""The SQLite file of the index of runs, and how it is brought up to date without looking at each run.

A folder is listed again when its modification time shows that an entry was created, renamed or removed; only entries
that are new are looked at. A new attempt does not change that folder, so those of the newest runs are looked at.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from hpc_launch.base.files import make_private
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_info

LOCKED_S = 2.0
"""How long to wait for a locked database."""

UNKNOWN_S = 5.0
"""How long to look at the entries of one folder that are no runs of this user: others may make very many."""

UNSETTLED_S = 60.0
"""A folder that changed so recently is listed each time: clocks differ, time stamps may be coarse, and a new folder is
a run only once run.json is in it."""

RELIST_S = 3600.0
"""After this time a folder is listed even if it looks unchanged."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
"""Of a run's folder."""

_TABLES = """
CREATE TABLE places(place TEXT PRIMARY KEY, modified INTEGER, inode INTEGER, looked REAL);
CREATE TABLE runs(place TEXT, run TEXT, inode INTEGER, name TEXT, site TEXT, created REAL, state TEXT,
                  attempts INTEGER, status BLOB, as_of REAL, PRIMARY KEY (place, run));
CREATE INDEX newest ON runs(created, run);
CREATE INDEX by_name ON runs(run);
CREATE INDEX finished ON runs(created, run, state) WHERE status IS NOT NULL;
CREATE INDEX unfinished ON runs(created, run) WHERE status IS NULL;
CREATE TABLE jobs(job_id TEXT, place TEXT, run TEXT, PRIMARY KEY (job_id, place, run)) WITHOUT ROWID;
CREATE INDEX jobs_of_run ON jobs(place, run);
"""
# runs.attempts: when the folder of the attempts was last modified, in ns, before `status` was read from it.
# runs.as_of: when the source of the status said so.

T = TypeVar("T")


class IndexDatabase:
    """One SQLite file, or a database in memory while the file is locked, broken or cannot be written.

    A file of another version is deleted: everything in it can be rebuilt.
    """

    def __init__(self, path: Path, version: int) -> None:
        self._path = path
        self._version = version
        self._memory: sqlite3.Connection | None = None

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction. It may be called again, with another database, after an error of the first."""
        for _ in range(2 if self._memory is None else 0):
            try:
                return self._in_file(work)
            except (sqlite3.OperationalError, OSError):
                break  # locked, or read-only
            except sqlite3.DatabaseError:
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)  # corrupt, or of another version: rebuilt from the folders
        if self._memory is None:
            self._memory = sqlite3.connect(":memory:")
            self._memory.executescript(_TABLES)
        with self._memory:
            return work(self._memory)

    def _in_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if make_private(self._path.parent).stat().st_uid != os.getuid():
            raise PermissionError("the state folder belongs to another user")
        with closing(sqlite3.connect(self._path, timeout=LOCKED_S)) as connection:
            connection.execute("PRAGMA synchronous = OFF")  # a file that a crash of the machine breaks is rebuilt
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {self._version}; COMMIT;")
            elif version != self._version:
                raise sqlite3.DatabaseError(f"version {version}")
            with connection:
                return work(connection)


def refresh(database: sqlite3.Connection, place: Path) -> None:
    """Enter the new runs in a folder in the database and remove those that are gone. Raises OSError, UnicodeError."""
    key, now = str(place), time.time()
    known = "SELECT run, inode FROM runs WHERE place = ?"
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        _remove(database, key, dict(database.execute(known, (key,))))
        return
    try:
        # Opening a folder makes an NFS client ask the server for its current modification time.
        status = os.fstat(descriptor)
        row = database.execute("SELECT modified, inode, looked FROM places WHERE place = ?", (key,)).fetchone()
        same = row is not None and row[:2] == (status.st_mtime_ns, status.st_ino)
        if same and row[2] - status.st_mtime > UNSETTLED_S and 0 <= now - row[2] < RELIST_S:
            return
        with os.scandir(descriptor) as entries:
            # Without a call per entry: the type and the inode come with the names.
            folders = (entry for entry in entries if NAME.match(entry.name) and entry.is_dir(follow_symlinks=False))
            listed = {entry.name: entry.inode() for entry in folders}
    finally:
        os.close(descriptor)
    before = dict(database.execute(known, (key,)))
    _remove(database, key, before.keys() - listed.keys())
    new = {name: inode for name, inode in listed.items() if before.get(name) != inode}
    complete = _enter_all(database, place, new)
    values = (key, status.st_mtime_ns, status.st_ino, now if complete else 0.0)
    database.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", values)


def _enter_all(database: sqlite3.Connection, place: Path, new: Mapping[str, int]) -> bool:
    """Enter those of the new entries that are runs of this user. Returns whether all were looked at."""
    spent = 0.0
    for name, inode in new.items():
        began = time.monotonic()
        if not enter(database, RunFolder(place / name), inode):
            _remove(database, str(place), [name])
            spent += time.monotonic() - began
            if spent > UNKNOWN_S:
                return False
    return True


def enter(database: sqlite3.Connection, run: RunFolder, inode: int) -> bool:
    """Enter a run of this user, or renew its entry. Returns False for anything else."""
    try:
        info = read_info(run) if _is_own(run.path.lstat()) else None
    except OSError:
        return False
    if info is None:
        return False
    key = (str(run.path.parent), run.name)
    row = database.execute("SELECT created FROM runs WHERE place = ? AND run = ?", key).fetchone()
    if row is not None and row[0] == info.created:
        database.execute("UPDATE runs SET inode = ? WHERE place = ? AND run = ?", (inode, *key))
        return True
    values = (*key, inode, info.name, info.site, info.created)
    database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, NULL, NULL)", values)
    return True


def reopen(database: sqlite3.Connection, place: str, run: str) -> None:
    """Forget that a run is finished: its files are read again."""
    database.execute("UPDATE runs SET status = NULL WHERE place = ? AND run = ?", (place, run))


def _remove(database: sqlite3.Connection, place: str, names: Iterable[str]) -> None:
    for name in names:
        database.execute("DELETE FROM runs WHERE place = ? AND run = ?", (place, name))
        database.execute("DELETE FROM jobs WHERE place = ? AND run = ?", (place, name))


def still_same(database: sqlite3.Connection, rows: Iterable[tuple[str, str, int | None]]) -> bool:
    """Check runs given by place, name and, if they are finished, the modification time of their attempts.

    Reopens those with a new attempt, and removes those that are certainly gone. Returns whether all are as before.
    """
    same = True
    for place, run, modified in rows:
        path = Path(place) / run
        try:
            own = _is_own(path.lstat())
            if own and (modified is None or RunFolder(path).last_attempt_ns() == modified):
                continue
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                continue  # it cannot be looked at for the moment
            own = os.path.isdir(path)
        if own:
            reopen(database, place, run)
        else:
            _remove(database, place, [run])
        same = False
    return same


def _is_own(status: os.stat_result) -> bool:
    """Whether a folder belongs to the user. A link does not, whatever it points to: another user may have made it."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
