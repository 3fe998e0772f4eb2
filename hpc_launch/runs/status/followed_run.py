"""One run between polls of the tracker: its files, the facts about its attempts, and the scheduler's answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from hpc_launch.base.errors import SchedulerError
from hpc_launch.base.files import read_text
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, keep_final, successor_of
from hpc_launch.runs.records.run_info import RunInfo
from hpc_launch.runs.records.submission import keep_over
from hpc_launch.runs.status.attempt_view import AttemptView, SchedulerAnswer
from hpc_launch.runs.status.run_status import FINAL_RUN_STATES
from hpc_launch.schedulers.job_files import hosts_of, spares_of
from hpc_launch.schedulers.scheduler import LIVE_STATES, JobRecord, PartlyUnreachable, Scheduler

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


REMEMBERED_S = 24 * 3600.0
"""For how long the scheduler is asked about a cancelled job that it was not told of, or about what a run left."""


@dataclass
class FollowedRun:
    """The state of one run between polls."""

    run: RunFolder
    info: RunInfo | None = None
    answers: SchedulerAnswers | None = None
    error: str | None = None
    """Why there is no scheduler to ask."""
    unreadable: str | None = None
    """Why the run folder, which was there before, cannot be read; its last content stays in `files`."""
    missed: tuple[float, str | None] = (0.0, None)
    """When the checkpoint folder was last searched for files that the pattern misses, and the result."""
    missing: bool = False
    """Whether it was moved or deleted."""
    files: list[AttemptFiles] = field(default_factory=list)
    views: list[AttemptView] = field(default_factory=list)
    stamp: int | None = None
    """When the folder of the attempts was last modified (ns), before it was read."""
    unsettled: dict[int, tuple[float, str | None]] = field(default_factory=dict)
    """When the submission of an attempt without a job id was last looked up, and why it has none; 0: no attempt yet."""

    @property
    def since(self) -> float:
        """When the run was created, in seconds since the epoch."""
        if self.info is not None:
            return self.info.created
        try:
            return self.run.path.stat().st_mtime
        except OSError:
            return time.time()

    def check_folder(self) -> None:
        """Find out whether the run folder is still there. A file server that does not answer does not prove it gone."""
        run = self.run
        self.unreadable, self.missing = None, False
        if run.attempts():
            return
        try:
            os.stat(run.attempts_folder if self.files else run.path)
        except FileNotFoundError:
            self.unreadable, self.missing = "no longer exists: it was moved or deleted", True
        except OSError as error:
            self.unreadable = f"cannot be read: {error.strerror or error}"
        else:
            if self.files:
                self.unreadable = "no longer lists its attempts"

    @property
    def unreadable_reason(self) -> str:
        """Why the state is unknown, with the last known state of the job."""
        view = self.views[-1] if self.views else None
        reason = f"the run folder {self.run.path} {self.unreadable}"
        if view is None or view.job_id is None or view.final_record is not None:
            return reason
        state = view.live.state if view.live is not None else "unknown"
        end = f" (`scancel {view.job_id}` ends it)" if self.info and self.info.scheduler == "slurm" else ""
        return f"{reason}; the last known state of job {view.job_id} is {state}{end}"

    def open_jobs(self, now: float) -> list[str]:
        """The jobs without a final state on record; of several attempts in one job the last counts.

        A cancelled job that would exit at its start is still open until the scheduler was told, for REMEMBERED_S.
        """
        newest = {files.job_id: files for files in self.files}
        open_jobs = [
            job_id
            for job_id, files in newest.items()
            if job_id is not None and files.final is None and (files.void is None or _cancel_not_sent(files, now))
        ]
        found = successor_of(self.files)
        if found is not None and not found[1].over and found[1].job_id is not None:
            final = self.files[-1].final
            if final is None or final.ended is None or now - final.ended < REMEMBERED_S:
                open_jobs.append(found[1].job_id)
        return open_jobs

    def is_over(self, ended: float | None, now: float) -> bool:
        """Whether nothing more is to be learned about a run whose state is final and whose last attempt ended then.

        No job is left to ask about, or the scheduler forgot it long ago.
        """
        if self.unreadable is not None or any(_cancel_not_sent(files, now) for files in self.files):
            return False
        return not self.open_jobs(now) or (ended is not None and now - ended > REMEMBERED_S)

    def successor(self) -> JobRecord | None:
        """The job that waits to take over from the run's newest one, by the scheduler's last answer."""
        found = successor_of(self.files)
        if found is None or self.answers is None:
            return None
        files, record = found
        if record.job_id is None or record.over:
            return None
        job = self.answers.of(record.job_id).record
        if job is None or (job.name is not None and job.name != record.job_name):
            return None  # a cluster that is set up again reuses job ids
        if job.ended_for_good:
            keep_over(files.attempt, record)
        return job if job.state in LIVE_STATES else None

    def hosts(self, state: str, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """The hosts and spares of the active attempt on a site without Slurm; `nodes` are those by its records."""
        active = state not in FINAL_RUN_STATES and state != "RETRYING"
        if not active or not self.files or self.info is None or self.info.scheduler != "ssh":
            return ()
        try:
            script = read_text(self.files[-1].attempt.script, errors="replace")
            return tuple(dict.fromkeys([*(nodes or hosts_of(script)[0]), *spares_of(script)]))
        except (OSError, IndexError):
            return nodes

    def view(self, at: int, now: float, settle_s: float) -> AttemptView:
        """The facts about the attempt at a position of `files`. Keeps a final state on record."""
        files = self.files[at]
        job_id = files.job_id
        superseded = job_id is not None and any(later.job_id == job_id for later in self.files[at + 1 :])
        continued = any(later.same_start(files) for later in self.files[at + 1 :])
        answer = self.answers.of(job_id) if self.answers and job_id else SchedulerAnswer(error=self.error)
        _, unsettled = self.unsettled.get(files.attempt.number, (0.0, self.error))
        view = AttemptView(files, answer, now, superseded, continued, submitting=unsettled, settle_s=settle_s)
        final = view.final_record
        if final is not None and not superseded and files.final is None:
            keep_final(files.attempt, final)
        return view


def _cancel_not_sent(files: AttemptFiles, now: float) -> bool:
    request = files.cancel
    return request is not None and request.sent is None and now - (request.time or 0.0) < REMEMBERED_S
