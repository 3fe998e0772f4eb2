"""Query Slurm at most once every 10 s per user and host, and share the answer between processes.

A file holds the last answer and the time of the query. A process that finds it too old writes the time of its new
query, queries, and writes the answer. It holds the lock for both writes but not for the query, so a frozen process
does not block others for long. If the folder or its locks do not work, each process keeps its own answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import Unreachable
from hpc_launch.base.files import make_private, state_folder, write_atomic
from hpc_launch.base.json_records import read_record, record_text
from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.schedulers.slurm import parse_jobs
from hpc_launch.schedulers.slurm.run_command import selected_cluster

FLOOR_S = 10.0
"""Minimum seconds between two queries of the controller."""
LOCK_WAIT_S = 2.0
"""Maximum wait for the lock in seconds; it is held for milliseconds, so a longer wait means that it does not work."""
ANSWER_WAIT_S = 75.0
"""Maximum wait for another process's query in seconds: the commands' timeouts plus the rate limit."""
WANTED_S = 120.0
"""Seconds after which a job that no process asked about is no longer queried."""
KEPT_S = 24 * 3600.0
"""Seconds to keep the record of a job that has left the queue."""
NAME_KEPT_S = 24 * 3600.0
"""Seconds to keep the cluster's name, which each submission records."""

Ask = Callable[[list[str], Mapping[str, JobRecord]], list[JobRecord]]
"""Queries Slurm for jobs, given the previous records. Raises Unreachable."""


class CachedAnswer(Struct):
    """The content of the cache file."""

    asked: float = 0.0
    """Time of the last query, answered or not."""
    answered: float = 0.0
    """Time of the query that this answers."""
    failures: int = 0
    error: str | None = None
    hint: str | None = None
    records: dict[str, JobRecord] = {}
    wanted: dict[str, float] = {}
    """Time at which a process last asked about each job."""
    absent: list[str] = []
    """Jobs unknown to every source."""
    cluster: str | None = None
    named: float = 0.0
    """When the cluster told its name."""

    def due(self, now: float) -> bool:
        """Whether a query is allowed: the pause doubles after each failure up to one minute. A query time in the future
        means that the clock was set back."""
        return not 0 <= now - self.asked < min(FLOOR_S * 2.0**self.failures, 60.0)

    def missing(self, job_ids: Iterable[str]) -> list[str]:
        """The jobs that this answer neither contains nor lists as absent."""
        table, absent = parse_jobs.RecordTable(self.records.values()), set(self.absent)
        return [one for one in job_ids if one not in absent and table.pick(one) is None]

    def select(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """The records of these jobs; unknown jobs are omitted."""
        table = parse_jobs.RecordTable(self.records.values())
        picked = {job_id: table.pick(job_id) for job_id in job_ids}
        return {job_id: record for job_id, record in picked.items() if record is not None}

    def learn(self, records: Iterable[JobRecord], asked: float, about: Iterable[str]) -> None:
        """Update from the answer to a query made at time `asked` about these jobs."""
        new = {record.job_id: record for record in records}
        table = parse_jobs.RecordTable(new.values())
        self.records = new | {
            job_id: record
            for job_id, record in self.records.items()
            if table.pick(job_id) is None and asked - record.as_of < KEPT_S and record.ended_for_good
        }
        table = parse_jobs.RecordTable(self.records.values())
        self.absent = [one for one in about if table.pick(one) is None]
        self.answered, self.failures, self.error, self.hint = asked, 0, None, None


class SharedAnswer:
    """The state of this user's jobs, shared by the user's processes on this host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = CachedAnswer()

    def about(self, job_ids: Iterable[str], ask: Ask, *, fresh: bool = False) -> dict[str, JobRecord]:
        """The records of these jobs; unknown jobs are omitted.

        Args:
            job_ids: Slurm's ids; array entries as `12_3`.
            ask: Queries Slurm, if a query is due.
            fresh: Query now, regardless of the rate limit.

        Raises:
            Unreachable: This query failed, or another process's recent one.
        """
        ids = list(dict.fromkeys(job_ids))
        end = time.monotonic() + ANSWER_WAIT_S
        while True:
            with self._locked():
                # Read the clock after taking the lock: an earlier time would look like a clock set back.
                now = time.time()
                answer = self._load()
                answer.wanted = {one: at for one, at in answer.wanted.items() if 0 <= now - at < WANTED_S}
                # Saved now and then, so that the next query includes these jobs.
                refresh_wanted = any(now - answer.wanted.get(one, 0.0) > WANTED_S / 2 for one in ids)
                answer.wanted |= dict.fromkeys(ids, now)
                query = fresh or answer.due(now)
                answer.asked = now if query else answer.asked
                if query or refresh_wanted:
                    self._save(answer)
            if query:
                return self._ask(answer, now, ask).select(ids)
            if answer.error is not None:
                raise Unreachable(answer.error, answer.hint)
            if not answer.missing(ids):
                return answer.select(ids)
            if time.monotonic() > end:
                raise Unreachable(f"Slurm did not answer within {ANSWER_WAIT_S:g} s")
            # The job is newer than the answer, so wait for the next one instead of calling it unknown.
            time.sleep(0.2)

    def everything(self, ask: Ask) -> list[JobRecord]:
        """All jobs that Slurm remembers now, and those that ended lately. Raises Unreachable."""
        with self._locked():
            now = time.time()
            answer = self._load()
            answer.asked = now
            self._save(answer)
        return list(self._ask(answer, now, ask).records.values())

    def cluster(self, ask: Callable[[], str | None]) -> str | None:
        """The cluster's name; None if it is not known and Slurm does not tell it."""
        answer = self._load()
        if answer.cluster is not None and 0 <= time.time() - answer.named < NAME_KEPT_S:
            return answer.cluster
        name = None
        with contextlib.suppress(Unreachable):
            name = ask()
        with self._locked():
            answer = self._load()
            answer.cluster, answer.named = name, time.time()
            self._save(answer)
        return name

    def note(self, record: JobRecord) -> None:
        """Put in what is known without asking: a job that was just submitted."""
        with self._locked():
            answer = self._load()
            answer.records[record.job_id] = record
            answer.wanted[record.job_id] = time.time()
            self._save(answer)

    def _ask(self, before: CachedAnswer, asked: float, ask: Ask) -> CachedAnswer:
        failure: Unreachable | None = None
        records: list[JobRecord] = []
        try:
            records = ask(list(before.wanted), before.records)
        except Unreachable as error:
            failure = error
        with self._locked():
            answer = self._load()
            # A process that was frozen during its query must not overwrite a newer answer.
            if asked >= answer.answered:
                answer.wanted = before.wanted | answer.wanted
                if failure is None:
                    answer.learn(records, asked, before.wanted)
                else:
                    answer.failures, answer.error, answer.hint = answer.failures + 1, str(failure), failure.hint
                    # Start the pause now: the query itself may have taken longer.
                    answer.asked = time.time()
                self._save(answer)
        if failure is not None:
            raise failure
        return answer

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock if possible. flock also works between threads of one process."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                make_private(self.path.parent)
                descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                end = time.monotonic() + LOCK_WAIT_S
                while time.monotonic() < end:
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        time.sleep(0.02)
            yield

    def _load(self) -> CachedAnswer:
        return read_record(self.path, CachedAnswer) or self._own

    def _save(self, answer: CachedAnswer) -> None:
        self._own = answer
        with contextlib.suppress(OSError):
            write_atomic(self.path, record_text(answer, indent=None), mode=0o600, sync=False)


def shared_answer() -> SharedAnswer:
    """The shared answer for this user, this host and the selected cluster."""
    host = socket.gethostname().split(".")[0]
    where = os.environ.get("SLURM_CONF", "") + (selected_cluster() or "")
    cluster = f"-{hashlib.sha256(where.encode()).hexdigest()[:8]}" if where else ""
    return SharedAnswer(state_folder() / f"slurm-{host}-{os.getuid()}{cluster}.json")
