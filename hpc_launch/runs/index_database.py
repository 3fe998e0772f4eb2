"""The SQLite file of the index of runs, and how it is brought up to date without looking at each run.

A folder is listed again when its modification time shows that an entry was created, renamed or removed; only entries
that are new are looked at. A new attempt does not change that folder: `resubmit` leaves a line in a file of the state
folder, one file per host, from which the others continue to read.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from hpc_launch.base.files import open_regular
from hpc_launch.base.user_dirs import make_private
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.status.run_status import LAYOUT

VERSION = (LAYOUT + 4) & 0x7FFFFFFF
"""The database's user_version. A database of another version is deleted: it can be rebuilt. To be increased when the
tables or the fields of RunStatus change, or when the same files give another final state."""

LOCKED_S = 0.5
"""How long to wait for a locked database at first."""

LOCKED_LATER_S = 30.0
"""The same once it has been used: what is in memory then would be missing."""

_TABLES = """
CREATE TABLE places(place TEXT PRIMARY KEY, modified INTEGER, inode INTEGER, looked REAL);
CREATE TABLE runs(place TEXT, run TEXT, inode INTEGER, name TEXT, site TEXT, created REAL, state TEXT,
                  attempts INTEGER, status BLOB, PRIMARY KEY (place, run));
CREATE INDEX newest ON runs(created, run);
CREATE INDEX by_name ON runs(run);
CREATE INDEX finished ON runs(state, created, run) WHERE status IS NOT NULL;
CREATE INDEX unfinished ON runs(created, run) WHERE status IS NULL;
CREATE TABLE jobs(job_id TEXT, place TEXT, run TEXT, PRIMARY KEY (job_id, place, run)) WITHOUT ROWID;
CREATE INDEX jobs_of_run ON jobs(place, run);
CREATE TABLE resubmitted(file TEXT PRIMARY KEY, bytes INTEGER);
"""
# runs.attempts: when the folder of the attempts was last modified, in ns, before `status` was read from it.

T = TypeVar("T")


class IndexDatabase:
    """One SQLite file, or a database in memory while the file is locked, broken or cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory: sqlite3.Connection | None = None
        self._timeout_s = LOCKED_S

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction. It may be called again, with another database, after an error of the first."""
        if self._memory is None:
            try:
                return self._in_file(work)
            except (sqlite3.OperationalError, OSError):
                pass  # locked, or read-only
            except sqlite3.DatabaseError:
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)  # corrupt: the next command rebuilds it from the folders
            self._memory = sqlite3.connect(":memory:")
            self._memory.executescript(_TABLES)
        with self._memory:
            return work(self._memory)

    def _in_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        folder = make_private(self._path.parent)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError("the state folder belongs to another user")
        try:
            connection = _opened(self._path, self._timeout_s)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # Not a database, or of another version: everything in it can be rebuilt.
            self._path.unlink(missing_ok=True)
            connection = _opened(self._path, self._timeout_s)
        with closing(connection), connection:
            result = work(connection)
        self._timeout_s = LOCKED_LATER_S
        return result


def _opened(path: Path, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout_s)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # a file that a crash of the machine breaks is rebuilt
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"version {version}")
    except BaseException:
        connection.close()
        raise
    return connection


UNKNOWN_S = 5.0
"""How long to look at the entries of one folder that are no runs of this user: others may make very many."""

UNSETTLED_S = 60.0
"""A folder that changed so recently is listed each time: clocks differ, and time stamps may be coarse."""

RELIST_S = 3600.0
"""After this time a folder is listed even if it looks unchanged."""

INCOMPLETE_S = 24 * 3600.0
"""For how long a folder of this user without run.json may still become a run."""

BATCH = 1000
"""Runs in one transaction, which locks the database."""

Doing = Callable[[str], None]


def refresh(database: sqlite3.Connection, places: Iterable[Path], doing: Doing) -> None:
    """Enter new runs in the database and remove those that are gone. A folder that does not answer stays as it is."""
    for place in places:
        try:
            str(place).encode()
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except ValueError:
            continue  # a name that no run's folder has
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                _remove(database, str(place), [name for name, _ in _known(database, str(place))])
            continue
        try:
            _refresh(database, place, descriptor, doing)
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _refresh(database: sqlite3.Connection, place: Path, descriptor: int, doing: Doing) -> None:
    # Opening a folder makes an NFS client ask the server for its current modification time.
    status, now, key = os.fstat(descriptor), time.time(), str(place)
    row = database.execute("SELECT modified, inode, looked FROM places WHERE place = ?", (key,)).fetchone()
    if (
        row is not None
        and (row[0], row[1]) == (status.st_mtime_ns, status.st_ino)
        and row[2] - status.st_mtime > UNSETTLED_S
        and 0 <= now - row[2] < RELIST_S
    ):
        return
    with os.scandir(descriptor) as entries:
        # Without a call per entry: the type and the inode come with the names.
        listed = {one.name: one.inode() for one in entries if one.is_dir(follow_symlinks=False) and is_text(one.name)}
    known = dict(_known(database, key))
    _remove(database, key, known.keys() - listed.keys())
    new = {name: inode for name, inode in listed.items() if known.get(name) != inode}
    complete = _enter_all(database, place, new, doing)
    values = (key, status.st_mtime_ns, status.st_ino, now if complete else 0.0)
    database.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", values)


def _enter_all(database: sqlite3.Connection, place: Path, new: dict[str, int], doing: Doing) -> bool:
    """Enter those of the new entries that are runs of this user. Returns whether nothing has to be looked at again."""
    complete, spent = True, 0.0
    for count, (name, inode) in enumerate(new.items(), start=1):
        path, began = place / name, time.monotonic()
        if not enter(database, RunFolder(path), inode):
            _remove(database, str(place), [name])
            complete = complete and not _may_become_run(path)
            spent += time.monotonic() - began
            if spent > UNKNOWN_S:
                return False
        if count % BATCH == 0:
            doing(f"indexing {len(new)} run folders: {count} done")
            database.commit()
    return complete


def enter(database: sqlite3.Connection, run: RunFolder, inode: int) -> bool:
    """Enter a run of this user, or renew its entry. Returns False for anything else."""
    info = read_info(run) if _is_own(run.path) else None
    if info is None:
        return False
    key = (str(run.path.parent), run.name)
    row = database.execute("SELECT created FROM runs WHERE place = ? AND run = ?", key).fetchone()
    if row is not None and row[0] == info.created:
        database.execute("UPDATE runs SET inode = ? WHERE place = ? AND run = ?", (inode, *key))
        return True
    values = (*key, inode, info.name, info.site, info.created)
    database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, NULL)", values)
    return True


def reopen(database: sqlite3.Connection, place: str, run: str) -> None:
    """Forget that a run is finished: its files are read again."""
    database.execute("UPDATE runs SET status = NULL WHERE place = ? AND run = ?", (place, run))


def _remove(database: sqlite3.Connection, place: str, names: Iterable[str]) -> None:
    for name in names:
        database.execute("DELETE FROM runs WHERE place = ? AND run = ?", (place, name))
        database.execute("DELETE FROM jobs WHERE place = ? AND run = ?", (place, name))


def still_same(database: sqlite3.Connection, rows: Iterable[tuple[str, str, int | None]]) -> bool:
    """Check runs given by place, name and the modification time of their attempts.

    Reopens those with a new attempt, and removes those that are certainly gone. Returns whether all are as before.
    """
    same = True
    for place, run, modified in rows:
        path = RunFolder(Path(place) / run)
        own = _is_own(path.path)
        try:
            if own and (modified is None or path.last_attempt_ns() == modified):
                continue
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                continue  # it cannot be looked at for the moment
        if own:
            reopen(database, place, run)
        elif _may_become_run(path.path):
            continue
        else:
            _remove(database, place, [run])
        same = False
    return same


def note_resubmitted(folder: Path, host: str, run: RunFolder) -> None:
    """Tell all hosts that a run gets another attempt."""
    with suppress(OSError):
        make_private(folder)
        descriptor = os.open(folder / host, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, json.dumps(str(run.path)).encode() + b"\n")
        finally:
            os.close(descriptor)


def reopen_resubmitted(database: sqlite3.Connection, folder: Path) -> None:
    """Reopen the runs that any host resubmitted since the last call."""
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(folder))
    read = dict(database.execute("SELECT file, bytes FROM resubmitted"))
    for name in filter(is_text, names):
        with suppress(OSError), open_regular(folder / name, links=False) as stream:
            size, before = os.fstat(stream.fileno()).st_size, read.get(name, 0)
            if size == before:
                continue
            stream.seek(before if size > before else 0)
            whole, newline, _ = stream.read().rpartition(b"\n")
            for line in whole.split(b"\n"):
                with suppress(ValueError, TypeError):
                    path = Path(json.loads(line))
                    reopen(database, str(path.parent), path.name)
            end = (before if size > before else 0) + len(whole) + len(newline)
            database.execute("INSERT OR REPLACE INTO resubmitted VALUES (?, ?)", (name, end))


def _known(database: sqlite3.Connection, place: str) -> list[tuple[str, int]]:
    return database.execute("SELECT run, inode FROM runs WHERE place = ?", (place,)).fetchall()


def is_text(name: str) -> bool:
    """Whether the database can store it; no run has another name."""
    try:
        name.encode()
    except UnicodeError:
        return False
    return True


def _is_own(path: Path) -> bool:
    """Whether a folder belongs to the user. A link does not, whatever it points to: another user may have made it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _may_become_run(path: Path) -> bool:
    """Whether a folder without run.json is one that is being created, or cannot be looked at for the moment."""
    try:
        status = path.lstat()
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return status.st_uid == os.getuid() and time.time() - status.st_mtime < INCOMPLETE_S
