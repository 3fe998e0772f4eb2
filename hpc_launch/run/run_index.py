"""The index of this user's runs: SQLite in the state folder, one file per host, rebuilt from the run folders.

Nothing depends on it. Small files next to it, which need no locks, name the folders that hold runs. If the database is
broken, locked or read-only, the folders are read instead.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_launch.base.files import create_once, read_text
from hpc_launch.base.user_dirs import make_private, state_folder
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.records.attempt_files import Reader
from hpc_launch.run.records.run_info import read_info
from hpc_launch.run.status.run_status import RunStatus

VERSION = 1
"""The database's user_version. A database of another version is deleted: it can be rebuilt."""

LOCKED_S = 0.5
"""How long to wait for a locked database."""

UNKNOWN_S = 5.0
"""How long to look at the folders of one place that the database does not know."""

SEEN_S = 60.0
"""How often an unchanged state is written again."""

_TABLES = """
CREATE TABLE runs(folder TEXT PRIMARY KEY, run TEXT, name TEXT, site TEXT, created REAL, last_state TEXT,
                  last_seen REAL);
CREATE TABLE jobs(job_id TEXT, folder TEXT, PRIMARY KEY (job_id, folder));
"""


@dataclass(frozen=True)
class IndexEntry:
    """A run in the index. `last_state` was seen at `last_seen` (seconds since the epoch); None if never."""

    run: str
    folder: Path
    name: str
    site: str
    created: float
    last_state: str | None = None
    last_seen: float | None = None


class Index:
    """The runs that this user submitted. No method raises for an error of the database or a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._database = folder / f"runs-{os.uname().nodename}.sqlite".replace("/", "_")
        self._home = environment.get("HPC_LAUNCH_HOME")
        self._usable = True
        self._seen: dict[str, tuple[str, float]] = {}

    def add(self, run: RunFolder, job_id: str | None = None) -> None:
        """Add a run and its newest job."""
        run = RunFolder(_real(run.path))
        self._remember(run.path.parent)
        entry = _entry(run)
        if entry is None:
            return
        with self._open() as database:
            if database is not None:
                _insert(database, entry)
                if job_id is not None:
                    database.execute("INSERT OR IGNORE INTO jobs VALUES (?, ?)", (job_id, str(run.path)))

    def seen(self, status: RunStatus) -> None:
        """Store the last seen state of a run."""
        now = time.time()
        state, at = self._seen.get(status.run, (None, 0.0))
        if state == status.state and now - at < SEEN_S:
            return
        self._seen[status.run] = (status.state, now)
        with self._open() as database:
            if database is not None:
                values = (status.state, now, str(_real(status.folder)))
                database.execute("UPDATE runs SET last_state = ?, last_seen = ? WHERE folder = ?", values)

    def entries(self) -> list[IndexEntry]:
        """All existing runs, newest first."""
        listed: dict[str, IndexEntry] = {}
        with self._open() as database:
            if database is not None:
                listed = {str(entry.folder): entry for entry in _select(database)}
        result, new = [], []
        for folder in self._run_folders(set(listed)):
            entry = listed.get(str(folder))
            if entry is None and (entry := _entry(RunFolder(folder))) is not None:
                new.append(entry)
            if entry is not None:
                result.append(entry)
        # A folder that cannot be looked at for the moment is not gone.
        gone = {name for name in set(listed) - {str(entry.folder) for entry in result} if _is_gone(name)}
        self._update(new, gone)
        return sorted(result, key=lambda entry: (entry.created, entry.run), reverse=True)

    def jobs(self, job_id: str) -> list[Path]:
        """The folders of the runs that a job belongs to: by the database, else by the records of all runs."""
        with self._open() as database:
            if database is not None:
                rows = database.execute("SELECT folder FROM jobs WHERE job_id = ?", (job_id,)).fetchall()
                known = [Path(str(row[0])) for row in rows if os.path.isdir(str(row[0]))]
                if known:
                    return known
        reader = Reader()
        return [
            folder
            for folder in self._run_folders()
            if any(reader.read(attempt).job_id == job_id for attempt in RunFolder(folder).attempts())
        ]

    def folders(self) -> list[Path]:
        """The known parents of run folders, and $HPC_LAUNCH_HOME."""
        known = {Path(self._home)} if self._home else set()
        with suppress(OSError):
            for path in (self.folder / "folders").iterdir():
                with suppress(OSError, ValueError):
                    known.add(Path(read_text(path).rstrip("\n")))
        # A folder may be known by several names; list its runs once.
        return sorted({_real(folder) for folder in known})

    def _remember(self, folder: Path) -> None:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        path = self.folder / "folders" / name
        with suppress(OSError, UnicodeError):
            if not os.path.exists(path):
                make_private(path.parent)
                create_once(path, f"{folder}\n")

    def _run_folders(self, known: Collection[str] = ()) -> Iterator[Path]:
        """The run folders of this user: in a shared folder, others may name theirs as they like, and make very many.

        Those in `known` are looked at first.
        """
        user = os.getuid()
        for folder in self.folders():
            names: list[str] = []
            with suppress(OSError, ValueError), os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            end = time.monotonic() + UNKNOWN_S
            for path in sorted((folder / name for name in names), key=lambda path: str(path) not in known):
                if str(path) not in known and time.monotonic() > end:
                    break
                if _is_own(path, user) and RunFolder(path).exists:
                    yield path

    def _update(self, new: list[IndexEntry], gone: set[str]) -> None:
        if not new and not gone:
            return
        with self._open() as database:
            if database is not None:
                for entry in new:
                    _insert(database, entry)
                for folder in gone:
                    database.execute("DELETE FROM runs WHERE folder = ?", (folder,))
                    database.execute("DELETE FROM jobs WHERE folder = ?", (folder,))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection | None]:
        """The database in a transaction; None where it is not usable. Errors inside are suppressed."""
        connection: sqlite3.Connection | None = None
        if self._usable:
            try:
                connection = self._connect()
            except (sqlite3.Error, OSError):
                self._usable = False
        if connection is None:
            yield None
            return
        with closing(connection):
            try:
                with connection:
                    yield connection
            except sqlite3.OperationalError:
                self._usable = False
            except UnicodeError:
                pass  # the name is not valid text: the database cannot store it, and no run or job has it
            except sqlite3.Error:
                # Corrupt: the next command rebuilds it from the folders.
                self._usable = False
                with suppress(OSError):
                    self._database.unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        make_private(self.folder)
        try:
            return _opened(self._database)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # Not a database, or of another version: everything in it can be rebuilt.
            self._database.unlink(missing_ok=True)
            return _opened(self._database)


def user_index(environment: Mapping[str, str]) -> Index:
    """The index of the user with this environment."""
    return Index(state_folder(environment), environment)


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCKED_S)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"version {version}")
    except BaseException:
        connection.close()
        raise
    return connection


def _real(path: Path) -> Path:
    with suppress(ValueError):  # a NUL in it
        return Path(os.path.realpath(path))
    return path


def _insert(database: sqlite3.Connection, entry: IndexEntry) -> None:
    values = (str(entry.folder), entry.run, entry.name, entry.site, entry.created)
    database.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, NULL, NULL)", values)


def _select(database: sqlite3.Connection) -> list[IndexEntry]:
    rows = database.execute("SELECT run, folder, name, site, created, last_state, last_seen FROM runs")
    return [IndexEntry(str(row[0]), Path(str(row[1])), *row[2:]) for row in rows.fetchall()]


def _is_own(path: Path, user: int) -> bool:
    """Whether a folder belongs to the user. A link does not, whatever it points to: another user may have made it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user


def _is_gone(folder: str) -> bool:
    """Whether it is certain that there is no run of this user any more."""
    try:
        return os.lstat(folder).st_uid != os.getuid()
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)


def _entry(run: RunFolder) -> IndexEntry | None:
    info = read_info(run)
    return IndexEntry(run.name, run.path, info.name, info.site, info.created) if info else None
