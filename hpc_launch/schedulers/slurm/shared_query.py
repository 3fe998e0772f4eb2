"""The shared answer: however many processes of a user ask on a host, the controller is asked at most once in 10 s.

A file holds the last answer and when it was asked for. Who finds it too old writes the time of a new question into
it, asks, and writes the answer: the lock is held for both writes and never while Slurm is asked, so that a frozen
process keeps nobody waiting for long. Where the folder or its locks do not work, each process has its own answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import Unreachable
from hpc_launch.base.files import read_json, write_atomic
from hpc_launch.base.user_dirs import make_private, state_folder
from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.schedulers.slurm import parse_jobs

FLOOR_S = 10.0
"""Seconds between two questions to the controller, whoever asks."""
LOCK_WAIT_S = 2.0
"""How long the lock is waited for; it is held for milliseconds, so a longer wait means that it does not work."""
ANSWER_WAIT_S = 75.0
"""How long an answer is waited for that another process has asked for: the commands' own limits, and the floor."""
WANTED_S = 120.0
"""A job that nobody asked about for so long is not asked for any more."""
KEPT_S = 24 * 3600.0
"""How long the record of a job that has left the queue is kept."""

Ask = Callable[[list[str], Mapping[str, JobRecord]], list[JobRecord]]
"""Asks Slurm about jobs, given what was known before. Raises Unreachable."""


@dataclass
class CachedAnswer:
    """The content of the file."""

    asked: float = 0.0
    """When the controller was last asked, whether it answered or not."""
    answered: float = 0.0
    """When the question was asked whose answer this is."""
    failures: int = 0
    error: str | None = None
    hint: str | None = None
    records: dict[str, JobRecord] = field(default_factory=dict)
    wanted: dict[str, float] = field(default_factory=dict)
    """When each job was last asked about."""
    absent: list[str] = field(default_factory=list)
    """Jobs that no source knew."""

    @property
    def floor_s(self) -> float:
        """The pause before the next question: a controller in trouble is asked ever more seldom, up to a minute."""
        return min(FLOOR_S * 2.0**self.failures, 60.0)

    def due(self, now: float) -> bool:
        """Whether the controller may be asked. A time that lies ahead is a clock that was set back."""
        return not 0 <= now - self.asked < self.floor_s

    def missing(self, job_ids: Iterable[str]) -> list[str]:
        """Those jobs about which this answer says nothing, not even that nobody knows them."""
        records = self.records.values()
        return [one for one in job_ids if one not in self.absent and parse_jobs.pick(one, records) is None]

    def select(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """What it says of these jobs."""
        found = {job_id: parse_jobs.pick(job_id, self.records.values()) for job_id in job_ids}
        return {job_id: record for job_id, record in found.items() if record is not None}

    def learn(self, records: Iterable[JobRecord], asked: float, about: Iterable[str]) -> None:
        """Take in the answer to a question that was asked at `asked` about these jobs."""
        new = {record.job_id: record for record in records}
        for job_id, record in self.records.items():
            if (
                parse_jobs.pick(job_id, new.values()) is None
                and asked - record.as_of < KEPT_S
                and record.ended_for_good
            ):
                new[job_id] = record
        self.records = new
        self.absent = [one for one in about if parse_jobs.pick(one, new.values()) is None]
        self.answered, self.failures, self.error, self.hint = asked, 0, None, None


class SharedAnswer:
    """What is known of this user's jobs, shared by the user's processes on this host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = CachedAnswer()

    def about(self, job_ids: Iterable[str], ask: Ask, *, fresh: bool = False) -> dict[str, JobRecord]:
        """The records of these jobs, without those that no source knows.

        Args:
            job_ids: Slurm's ids; array entries as `12_3`.
            ask: How to ask Slurm, when it is time.
            fresh: Ask now, whenever it was asked last.

        Raises:
            Unreachable: Slurm gave no answer now, or a moment ago to another process.
        """
        ids = list(dict.fromkeys(job_ids))
        end = time.monotonic() + ANSWER_WAIT_S
        while True:
            with self._locked():
                # Read once the lock is held: a time from before the wait for it would look like a clock set back.
                now = time.time()
                answer = self._load()
                answer.wanted = {one: at for one, at in answer.wanted.items() if 0 <= now - at < WANTED_S}
                # Written now and then, so that whoever asks next asks for these too.
                news = any(now - answer.wanted.get(one, 0.0) > WANTED_S / 2 for one in ids)
                answer.wanted |= dict.fromkeys(ids, now)
                mine = fresh or answer.due(now)
                answer.asked = now if mine else answer.asked
                if mine or news:
                    self._save(answer)
            if mine:
                return self._ask(answer, now, ask).select(ids)
            if answer.error is not None:
                raise Unreachable(answer.error, answer.hint)
            if not answer.missing(ids):
                return answer.select(ids)
            if time.monotonic() > end:
                raise Unreachable(f"Slurm gave no answer within {ANSWER_WAIT_S:g} s")
            # A job that is newer than the answer: "unknown" would be wrong, so the next answer is waited for.
            time.sleep(0.2)

    def everything(self, ask: Ask) -> list[JobRecord]:
        """All jobs that Slurm remembers now, and those that ended lately. Raises Unreachable."""
        with self._locked():
            now = time.time()
            answer = self._load()
            answer.asked = now
            self._save(answer)
        return list(self._ask(answer, now, ask).records.values())

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
            # A process that was frozen while it asked must not put its old answer over a newer one.
            if asked >= answer.answered:
                answer.wanted = before.wanted | answer.wanted
                if failure is None:
                    answer.learn(records, asked, before.wanted)
                else:
                    answer.failures, answer.error, answer.hint = answer.failures + 1, str(failure), failure.hint
                    # The pause begins now: the question alone may have taken longer.
                    answer.asked = time.time()
                self._save(answer)
        if failure is not None:
            raise failure
        return answer

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, if there can be one. flock, which is for threads of one process as well."""
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
        value = read_json(self.path)
        if value is None:
            return self._own
        try:
            return _from_json(value)
        except (TypeError, ValueError, KeyError, AttributeError):
            return self._own

    def _save(self, answer: CachedAnswer) -> None:
        self._own = answer
        with contextlib.suppress(OSError):
            write_atomic(self.path, json.dumps(asdict(answer)), mode=0o600)


def _from_json(value: Mapping[str, Any]) -> CachedAnswer:
    records = {}
    for job_id, given in value["records"].items():
        steps = tuple((str(step), str(state), str(code)) for step, state, code in given.pop("steps"))
        records[job_id] = JobRecord(**given, steps=steps)
    return CachedAnswer(
        asked=float(value["asked"]),
        answered=float(value["answered"]),
        failures=int(value["failures"]),
        error=value["error"],
        hint=value["hint"],
        records=records,
        wanted={str(job_id): float(at) for job_id, at in value["wanted"].items()},
        absent=[str(job_id) for job_id in value["absent"]],
    )


def shared_answer() -> SharedAnswer:
    """The answer of this user, this host, and the cluster that the environment points to."""
    host = socket.gethostname().split(".")[0]
    where = "".join(os.environ.get(name, "") for name in ("SLURM_CONF", "SLURM_CLUSTERS"))
    cluster = f"-{hashlib.sha256(where.encode()).hexdigest()[:8]}" if where else ""
    return SharedAnswer(state_folder() / f"slurm-{host}-{os.getuid()}{cluster}.json")
