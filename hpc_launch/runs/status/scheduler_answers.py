"""The last answers of one scheduler about jobs, with their ages, queried in this thread or in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from msgspec import structs

from hpc_launch.base.errors import SchedulerError
from hpc_launch.runs.status.attempt_view import SchedulerAnswer
from hpc_launch.schedulers.scheduler import JobRecord, PartlyUnreachable, Scheduler

FLOOR_S = 10.0
"""Minimum age of an answer before the next query; the local scheduler may be queried at any time."""

BACKOFF_S = 10.0
"""Pause after a query without an answer."""


class SchedulerAnswers:
    """Caches the answers of one scheduler: at most one query in 10 s."""

    def __init__(self, scheduler: Scheduler, *, clock: Callable[[], float] = time.time) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._answers: dict[str, SchedulerAnswer] = {}
        self._silent_since: float | None = None
        self._not_before = 0.0
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def of(self, job_id: str) -> SchedulerAnswer:
        """The last answer about this job."""
        return self._answers.get(job_id, SchedulerAnswer())

    @property
    def silent(self) -> bool:
        """Whether queries are paused because the scheduler did not answer."""
        return self._clock() < self._not_before

    def ask(self, job_ids: Iterable[str], *, fresh: bool = False) -> None:
        """Query all these jobs in this thread. Never raises: errors are part of the answers."""
        wanted = sorted(set(job_ids))
        if not wanted or (not fresh and (self.silent or all(map(self._is_recent, wanted)))):
            return
        errors: Mapping[str, str] = {}
        try:
            records = self.scheduler.query(wanted, fresh=fresh)
        except PartlyUnreachable as error:
            records, errors = dict(error.records), error.errors
        except SchedulerError as error:
            self._failed(wanted, str(error))
            return
        self._silent_since, self._not_before = None, 0.0
        now = self._clock()
        for job_id in wanted:
            if job_id in errors:
                self._answers[job_id] = replace(self.of(job_id), error=errors[job_id])
                continue
            record = records.get(job_id)
            # Pending tasks of a job array share a record with an id of its own.
            named = structs.replace(record, job_id=job_id) if record is not None else None
            self._answers[job_id] = _next(self.of(job_id), named, now)

    def ask_in_background(self, job_ids: Iterable[str]) -> None:
        """Query in the background, so that a hanging controller does not delay the reading of files."""
        if self._thread is not None and self._thread.is_alive():
            return
        # A daemon thread: an interrupted command must not wait for a hanging controller.
        self._thread = threading.Thread(target=self._in_background, args=(list(job_ids),), daemon=True)
        self._thread.start()

    def answered(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for a query in the background. Raises what went wrong in its thread."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _in_background(self, job_ids: list[str]) -> None:
        try:
            self.ask(job_ids)
        except BaseException as fault:
            self._fault = fault

    def _is_recent(self, job_id: str) -> bool:
        answer = self.of(job_id)
        if answer.answered is None or (answer.record is not None and answer.record.source == "local"):
            return False
        return self._clock() - answer.answered < FLOOR_S

    def _failed(self, job_ids: list[str], error: str) -> None:
        now = self._clock()
        self._silent_since = now if self._silent_since is None else self._silent_since
        self._not_before = now + BACKOFF_S
        silent = now - self._silent_since
        text = f"{error} (for {silent:.0f} s)" if silent >= 1 else error
        self._answers |= {job_id: replace(self.of(job_id), error=text) for job_id in job_ids}


def _next(before: SchedulerAnswer, record: JobRecord | None, now: float) -> SchedulerAnswer:
    """The answer after a new record. A job that is over and no longer known keeps its last record."""
    if record is not None:
        return SchedulerAnswer(record, record.as_of, None, record.state)
    last = before.record
    if last is not None and last.ended_for_good:
        return SchedulerAnswer(last, now, None, last.state)
    return SchedulerAnswer(None, now, None, before.last_seen)
