"""The index of this user's runs: SQLite in the state folder, one file per host, rebuilt from the run folders.

Nothing depends on it. If the database is broken, locked or read-only, the folders are read instead. Small files next to
it, which need no locks, name the folders that hold runs, for all hosts. The status of a finished run is kept, and its
files are not read again until it gets another attempt.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpc_launch.base.files import create_once, make_private, read_text, state_folder
from hpc_launch.base.json_records import file_lines
from hpc_launch.runs.index_database import NAME, IndexDatabase, enter, refresh, reopen, still_same
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.runs.status.startup_summary import Startup

_LAYOUT = [(one.name, one.type) for kind in (RunStatus, AttemptStatus, Progress, Startup) for one in fields(kind)]
VERSION = (zlib.crc32(repr(_LAYOUT).encode()) + 8) & 0x7FFFFFFF
"""Of the database. To be increased when the tables change, or when the same files give another final state; it changes
with the fields of a status."""

CHECKED = 200
"""How many of the newest runs are checked for a new attempt at each look."""

PRUNED = "pruned"
"""The file with a line for each run that `prune` deleted."""

T = TypeVar("T")

_Value = str | float | None
_Conditions = dict[str, tuple[_Value, ...]]
"""SQL conditions with the values of their placeholders."""


@dataclass(frozen=True)
class IndexEntry:
    """A run in the index."""

    run: str
    folder: Path
    name: str
    site: str
    created: float
    finished: bool = False
    """Whether the index has its final status."""


_FINISHED: _Conditions = {"status IS NOT NULL": ()}


class Index:
    """The runs that this user submitted. No method raises for an error of the database or a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._run = IndexDatabase(folder / f"runs-{os.uname().nodename.replace('/', '_')}.sqlite", VERSION).run
        default = Path(environment["HOME"], "hpc-launch", "runs") if environment.get("HOME") else None
        self._places = {path for path in (environment.get("HPC_LAUNCH_HOME"), default) if path}

    def add(self, run: RunFolder, job_id: str | None = None) -> None:
        """Add a run and its newest job. The index lists a sweep or a pipeline, not its points or stages."""
        run = _real(run)
        is_part = run.sweep is not None or run.pipeline is not None
        if not is_part:
            self._remember(run.path.parent)

        def work(database: sqlite3.Connection) -> None:
            known = is_part or enter(database, run, os.stat(run.path).st_ino)
            if known and job_id is not None:
                _add_job(database, job_id, run)

        with suppress(OSError, UnicodeError):
            self._run(work)

    def resubmitting(self, run: RunFolder) -> None:
        """Read the files of a run again, or those of its sweep: it gets another attempt."""
        run = run.sweep or run
        run = _real(run.pipeline or run)
        with suppress(UnicodeError):
            self._run(lambda database: reopen(database, str(run.path.parent), run.path.name))

    def seen(self, statuses: Sequence[RunStatus]) -> None:
        """Store the status of runs that are finished."""
        now = time.time()
        # A run whose last attempt is undecided may continue, so its state is not settled.
        settled = [status for status in statuses if not status.undecided and not status.folder_missing]

        def work(database: sqlite3.Connection) -> None:
            for status in settled:
                run, over = _real(RunFolder(status.folder)), status.final_stamp is not None
                key = (str(run.path.parent), run.path.name)
                query = "SELECT attempts, status FROM runs WHERE place = ? AND run = ?"
                stored, data = database.execute(query, key).fetchone(), _encoded(status) if over else None
                if stored is None or stored == (status.final_stamp, data):
                    continue
                as_of = None if status.age_s is None else now - status.age_s
                update = "UPDATE runs SET state = ?, attempts = ?, status = ?, as_of = ? WHERE place = ? AND run = ?"
                database.execute(update, (status.state, status.final_stamp, data, as_of, *key))
                for attempt in status.attempts if over else ():
                    if attempt.job_id is not None:
                        _add_job(database, attempt.job_id, run)

        with suppress(UnicodeError):
            self._run(work)

    def entries(
        self,
        *,
        prefix: str = "",
        site: str | None = None,
        since: float | None = None,
        unfinished: bool = False,
        limit: int | None = None,
    ) -> list[IndexEntry]:
        """The existing runs, newest first, at most `limit`: those whose names begin with `prefix`, on this site,
        created `since` then (seconds since the epoch), and with `unfinished` those without a final status."""
        if prefix and not NAME.match(prefix):
            return []
        conditions: _Conditions = {"status IS NULL": ()} if unfinished else {}
        conditions |= _among(site, since)
        if prefix:
            conditions["run >= ? AND run < ?"] = (prefix, prefix + "\x7f")
        query, values = _newest("place, run, name, site, created, status IS NOT NULL, attempts", conditions, limit)

        def work(database: sqlite3.Connection) -> list[Any]:
            rows = database.execute(query, values).fetchall()
            if still_same(database, ((*row[:2], row[6] if row[5] else None) for row in rows[:CHECKED])):
                return rows
            return database.execute(query, values).fetchall()

        return [_entry(row, finished=bool(row[5])) for row in self._current(work)]

    def finished(
        self,
        states: Sequence[str] = (),
        limit: int | None = None,
        *,
        site: str | None = None,
        since: float | None = None,
    ) -> Iterator[tuple[IndexEntry, RunStatus]]:
        """The finished runs in these states (default: all), newest first, by what the index has of them."""
        # In SQL: reading the status of 100,000 runs takes seconds.
        among: _Conditions = {f"state IN ({', '.join('?' * len(states))})": tuple(states)} if states else {}
        among |= _FINISHED | _among(site, since)
        query, values = _newest("place, run, name, site, created, status, as_of", among, limit)
        now = time.time()
        for row in self._run(lambda database: database.execute(query, values).fetchall()):
            age_s = None if row[6] is None else max(0.0, now - row[6])
            yield _entry(row, finished=True), replace(_STATUS.decode(zlib.decompress(row[5])), age_s=age_s)

    def check(self) -> None:
        """Check the newest finished runs, at most CHECKED, for a new attempt."""
        query, values = _newest("place, run, attempts", _FINISHED, CHECKED)
        self._current(lambda database: still_same(database, database.execute(query, values).fetchall()))

    def count(self) -> int:
        """How many runs there are."""
        return int(self._run(lambda database: database.execute("SELECT count(*) FROM runs").fetchone())[0])

    def jobs(self, job_id: str) -> list[Path]:
        """The folders of the runs that a job belongs to: by the database, else by the records of unfinished runs."""
        query = "SELECT place, run FROM jobs WHERE job_id = ?"
        with suppress(UnicodeError):
            rows = self._current(lambda database: database.execute(query, (job_id,)).fetchall())
            known = [Path(*row) for row in rows if os.path.isdir(os.path.join(*row))]
            if known:
                return known
        reader = Reader()
        return [
            entry.folder
            for entry in self.entries(unfinished=True)
            if any(reader.read(attempt).job_id == job_id for attempt in RunFolder(entry.folder).attempts())
        ]

    def folders(self) -> list[Path]:
        """The known parents of run folders, $HPC_LAUNCH_HOME and the default."""
        known = {str(place) for place in self._places}
        with suppress(OSError):
            for path in (self.folder / "folders").iterdir():
                with suppress(OSError, ValueError):
                    known.add(read_text(path).rstrip("\n"))
        # A folder may be known by several names; list its runs once.
        return sorted({Path(os.path.realpath(folder)) for folder in known if "\0" not in folder})

    def note_pruned(self, run: str, state: str) -> None:
        """Keep a line about a run before `prune` deletes it, for questions about it. Raises OSError."""
        when = time.strftime("%Y-%m-%d %H:%M")
        with open(make_private(self.folder) / PRUNED, "a", encoding="utf-8") as stream:
            stream.write(f"{run} was {state}, and was deleted by `hpc-launch prune` on {when}\n")

    def pruned(self) -> dict[str, str]:
        """What happened to each run that `prune` deleted, in words, by its name."""
        lines = (line.decode("utf-8", "replace").strip() for line in file_lines(self.folder / PRUNED))
        return {line.partition(" ")[0]: line for line in lines}

    def _remember(self, folder: Path) -> None:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        path = self.folder / "folders" / name
        with suppress(OSError, UnicodeError):
            if not os.path.exists(path):
                make_private(path.parent)
                create_once(path, f"{folder}\n")

    def _current(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` once the database is up to date."""

        def current(database: sqlite3.Connection) -> T:
            for place in self.folders():
                with suppress(OSError, UnicodeError):  # a folder that does not answer stays as it is
                    refresh(database, place)
            return work(database)

        return self._run(current)


def user_index(environment: Mapping[str, str] = os.environ) -> Index:
    """The index of the user with this environment."""
    return Index(state_folder(environment), environment)


def _among(site: str | None, since: float | None) -> _Conditions:
    """The conditions for a site, and for the time of creation."""
    conditions: _Conditions = {} if site is None else {"site = ?": (site,)}
    return conditions if since is None else conditions | {"created >= ?": (since,)}


def _newest(columns: str, conditions: _Conditions, limit: int | None) -> tuple[str, list[_Value]]:
    """A query of the newest runs that meet all conditions: SQL text with the values of its placeholders."""
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"SELECT {columns} FROM runs{where} ORDER BY created DESC, run DESC LIMIT ?"  # noqa: S608 - no values in it
    return query, [*(value for values in conditions.values() for value in values), -1 if limit is None else limit]


def _entry(row: Sequence[Any], *, finished: bool) -> IndexEntry:
    """An entry of the columns place, run, name, site and created."""
    place, run, name, site, created = row[:5]
    return IndexEntry(run, Path(place, run), name, site, created, finished)


def _add_job(database: sqlite3.Connection, job_id: str, run: RunFolder) -> None:
    values = (job_id, str(run.path.parent), run.path.name)
    database.execute("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?)", values)


def _real(run: RunFolder) -> RunFolder:
    return RunFolder(Path(os.path.realpath(run.path)))


def _encoded(status: RunStatus) -> bytes:
    """The status of a finished run with its last attempt."""
    attempts = tuple(replace(attempt, evidence=()) for attempt in status.attempts[-1:])
    whole = replace(status, attempts=attempts, age_s=None, final_stamp=None)
    return zlib.compress(msgspec.msgpack.encode(whole, enc_hook=str), 1)


_STATUS = msgspec.msgpack.Decoder(RunStatus, dec_hook=lambda kind, value: kind(value))
