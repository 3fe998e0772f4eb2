"""The SQLite file of the index of runs: its tables, and work on it that survives a file that cannot be used."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from hpc_launch.base.user_dirs import make_private
from hpc_launch.runs.status.final_status import LAYOUT

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
