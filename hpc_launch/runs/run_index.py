"""The index of this user's runs: SQLite in the state folder, one file per host, rebuilt from the run folders.

Nothing depends on it. Small files next to it, which need no locks, name the folders that hold runs and the runs that
were resubmitted, for all hosts. The status of a finished run is kept, and its files are not read again until it gets
another attempt. If the database is broken, locked or read-only, the folders are read instead.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hpc_launch.base.files import create_once, read_text
from hpc_launch.base.user_dirs import make_private, state_folder
from hpc_launch.runs.index_database import (
    IndexDatabase,
    enter,
    is_text,
    note_resubmitted,
    refresh,
    reopen_resubmitted,
    still_same,
)
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.run_status import FinalStatus, RunStatus, decode_final, encode_final

CHECKED = 200
"""How many of the runs to be shown are checked for a new attempt at each look."""

PAGE = 2000
"""Finished runs read at a time: no lock is held while they are printed."""

T = TypeVar("T")

_Value = str | float | None
_Conditions = dict[str, tuple[_Value, ...]]
"""SQL conditions with the values of their placeholders."""


@dataclass(frozen=True)
class IndexEntry:
    """A run in the index. `last_state` is the last state that was seen; None if none was."""

    run: str
    folder: Path
    name: str
    site: str
    created: float
    last_state: str | None = None
    finished: bool = False
    """Whether the index has its final status."""


class Index:
    """The runs that this user submitted. No method raises for an error of the database or a folder.

    `doing` is called with what takes long, as text.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], doing: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder = folder
        self.doing = doing
        self._host = os.uname().nodename.replace("/", "_")
        self._database = IndexDatabase(folder / f"runs-{self._host}.sqlite")
        default = Path(environment["HOME"], "hpc-launch", "runs") if environment.get("HOME") else None
        self._places = {path for path in (environment.get("HPC_LAUNCH_HOME"), default) if path}

    def add(self, run: RunFolder, job_id: str | None = None) -> None:
        """Add a run and its newest job."""
        run = RunFolder(_real(run.path))
        if run.sweep is not None or run.pipeline is not None:
            # The index lists the sweep or the pipeline, not its points or stages.
            if job_id is not None:
                self._database.run(lambda database: _add_job(database, job_id, run))
            return
        self._remember(run.path.parent)

        def work(database: sqlite3.Connection) -> None:
            if enter(database, run, os.stat(run.path).st_ino) and job_id is not None:
                _add_job(database, job_id, run)

        with suppress(OSError, UnicodeError):
            self._database.run(work)

    def resubmitting(self, run: RunFolder) -> None:
        """Read the files of a run again, or those of its sweep, on all hosts: it gets another attempt."""
        run = run.sweep or run
        run = run.pipeline or run
        note_resubmitted(self.folder / "resubmitted", self._host, RunFolder(_real(run.path)))

    def seen(self, statuses: Sequence[RunStatus]) -> None:
        """Store the states of runs, and the whole status of those that are finished."""
        now, rows = time.time(), []
        for status in statuses:
            if status.undecided or status.folder_missing:
                continue  # the run may continue, so its state is not settled
            path = _real(status.folder)
            data = None if status.final_stamp is None else encode_final(status, now)
            rows.append((status, str(path.parent), path.name, data))

        def work(database: sqlite3.Connection) -> None:
            for status, place, run, data in rows:
                query = "SELECT state, attempts, status IS NULL FROM runs WHERE place = ? AND run = ?"
                stored = database.execute(query, (place, run)).fetchone()
                if stored is None or stored == (status.state, status.final_stamp, data is None):
                    continue
                update = "UPDATE runs SET state = ?, attempts = ?, status = ? WHERE place = ? AND run = ?"
                database.execute(update, (status.state, status.final_stamp, data, place, run))
                for attempt in status.attempts if data is not None else ():
                    if attempt.job_id is not None:
                        _add_job(database, attempt.job_id, RunFolder(Path(place, run)))

        with suppress(UnicodeError):
            self._database.run(work)

    def entries(
        self, *, prefix: str = "", site: str | None = None, unfinished: bool = False, limit: int | None = None
    ) -> list[IndexEntry]:
        """The existing runs, newest first.

        Args:
            prefix: Only those whose names begin with it.
            site: Only those on this site.
            unfinished: Only those without a final status.
            limit: At most so many.
        """
        if not is_text(prefix):
            return []
        conditions: _Conditions = {"status IS NULL": ()} if unfinished else {}
        if site is not None:
            conditions["site = ?"] = (site,)
        if prefix:
            conditions["run >= ? AND run < ?"] = (prefix, prefix + chr(0x10FFFF))
        query, values = _select("place, run, name, site, created, state, status IS NOT NULL, attempts", conditions)
        query, values = _newest(query, values, limit)

        def work(database: sqlite3.Connection) -> list[Any]:
            rows = database.execute(query, values).fetchall()
            shown = rows[:CHECKED]
            if still_same(database, ((row[0], row[1], row[7] if row[6] else None) for row in shown)):
                return rows
            return database.execute(query, values).fetchall()

        return [_entry(row, finished=bool(row[6])) for row in self._current(work)]

    def finished(
        self, states: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[tuple[IndexEntry, FinalStatus]]:
        """The finished runs in these states (default: all), newest first, by what the index has of them."""
        before, left = (math.inf, ""), limit
        while left is None or left > 0:
            conditions = _finished(states) | {"(created, run) < (?, ?)": before}
            query, values = _select("place, run, name, site, created, state, status", conditions)
            query, values = _newest(query, values, PAGE if left is None else min(left, PAGE))
            rows = self._fetch(query, values)
            if not rows:
                return
            for row in rows:
                yield _entry(row, finished=True), decode_final(row[6])
            before, left = (rows[-1][4], rows[-1][1]), None if left is None else left - len(rows)

    def check(self, states: Sequence[str] = (), limit: int | None = None) -> None:
        """Check the newest finished runs in these states (default: all), at most CHECKED, for a new attempt."""
        most = CHECKED if limit is None else min(limit, CHECKED)
        query, values = _newest(*_select("place, run, attempts", _finished(states)), most)
        self._current(lambda database: still_same(database, database.execute(query, values).fetchall()))

    def count(self, states: Sequence[str] = ()) -> int:
        """How many finished runs are in these states; without states, how many runs there are."""
        return int(self._fetch(*_select("count(*)", _finished(states) if states else {}))[0][0])

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
        known = {Path(place) for place in self._places}
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

    def _fetch(self, query: str, values: Sequence[_Value]) -> list[Any]:
        return self._database.run(lambda database: database.execute(query, values).fetchall())

    def _current(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` once the database is up to date."""

        def current(database: sqlite3.Connection) -> T:
            refresh(database, self.folders(), self.doing)
            reopen_resubmitted(database, self.folder / "resubmitted")
            return work(database)

        return self._database.run(current)


def user_index(environment: Mapping[str, str]) -> Index:
    """The index of the user with this environment."""
    return Index(state_folder(environment), environment)


def _finished(states: Sequence[str]) -> _Conditions:
    """The condition for finished runs in these states (default: all)."""
    among = {f"state IN ({', '.join('?' * len(states))})": tuple(states)} if states else {}
    return {"status IS NOT NULL": (), **among}


def _select(columns: str, conditions: _Conditions) -> tuple[str, list[_Value]]:
    """A query of the runs that meet all conditions: SQL text with the values of its placeholders."""
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"SELECT {columns} FROM runs{where}"  # noqa: S608 - every value is a placeholder
    return query, [value for values in conditions.values() for value in values]


def _newest(query: str, values: list[_Value], limit: int | None) -> tuple[str, list[_Value]]:
    return f"{query} ORDER BY created DESC, run DESC LIMIT ?", [*values, -1 if limit is None else limit]


def _entry(row: Sequence[Any], *, finished: bool) -> IndexEntry:
    """An entry of the columns place, run, name, site, created and state."""
    place, run, name, site, created, state = row[:6]
    return IndexEntry(run, Path(place, run), name, site, created, state, finished)


def _add_job(database: sqlite3.Connection, job_id: str, run: RunFolder) -> None:
    values = (job_id, str(run.path.parent), run.path.name)
    database.execute("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?)", values)


def _real(path: Path) -> Path:
    with suppress(ValueError):  # a NUL in it
        return Path(os.path.realpath(path))
    return path
