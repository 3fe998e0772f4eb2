"""Following runs: reads their files, asks the schedulers, settles what a killed driver left, keeps last words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hpc_launch.base.errors import UserError
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import AttemptFiles, Reader
from hpc_launch.run.records.final_state import keep, record_of
from hpc_launch.run.records.run_store import RunInfo, read_info
from hpc_launch.run.records.verdict_record import decided_of
from hpc_launch.run.status.attempt_view import AttemptView, SchedulerAnswer, SourceLags
from hpc_launch.run.status.finished import unfinished
from hpc_launch.run.status.observe import observe
from hpc_launch.run.status.progress_reader import ProgressReader
from hpc_launch.run.status.run_state import Never, never_known, run_state, with_verdict
from hpc_launch.run.status.run_status import FINAL_RUN_STATES, AttemptStatus, Progress, RunStatus
from hpc_launch.run.status.scheduler_answers import SchedulerAnswers
from hpc_launch.run.submitting.reconcile import NEVER_SUBMITTED, SubmissionOutcome, no_attempt, reconcile
from hpc_launch.schedulers.scheduler import Scheduler

RECONCILE_S = 10.0
"""The pause between two look-ups of a submission that left no job id."""

PATIENCE_S = 0.3
"""How long a look at the files waits for a scheduler that is being asked in the background."""

SchedulerFor = Callable[[RunFolder], Scheduler]


@dataclass
class _Followed:
    """What is remembered of one run from look to look."""

    run: RunFolder
    info: RunInfo | None = None
    answers: SchedulerAnswers | None = None
    error: str | None = None
    files: list[AttemptFiles] = field(default_factory=list)
    cases: list[AttemptView] = field(default_factory=list)
    outcomes: dict[int, tuple[float, SubmissionOutcome]] = field(default_factory=dict)


class RunTracker:
    """Follows runs. `scheduler_for` hands out one scheduler object for each cluster, whichever run asks."""

    def __init__(
        self,
        runs: Iterable[RunFolder],
        scheduler_for: SchedulerFor,
        *,
        never: Never = never_known,
        limits: SourceLags | None = None,
        seen: Callable[[RunStatus], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._followed = {run.name: _Followed(run) for run in runs}
        self._scheduler_for = scheduler_for
        self._never = never
        self._limits = limits or SourceLags()
        self._seen = seen
        self._clock = clock
        self._answers: dict[int, SchedulerAnswers] = {}
        self._reader = Reader()
        self._progress = ProgressReader()
        self.last: dict[str, RunStatus] = {}

    def add(self, run: RunFolder) -> None:
        """Follow this run too."""
        self._followed.setdefault(run.name, _Followed(run))

    def poll(self, *, fresh: bool = False, background: bool = False) -> dict[str, RunStatus]:
        """The state of every run, by name.

        Args:
            fresh: Ask the schedulers at once, for a person who just changed something.
            background: Do not wait for a scheduler; its answer counts in a later poll.
        """
        for followed in self._followed.values():
            self._read(followed)
        self._ask(fresh, background)
        self.last = {name: self._status(followed) for name, followed in self._followed.items()}
        if self._seen is not None:
            for status in self.last.values():
                self._seen(status)
        return self.last

    def cases(self, run: RunFolder) -> list[AttemptView]:
        """What the last poll decided from, by attempt."""
        return self._followed[run.name].cases

    def _read(self, followed: _Followed) -> None:
        run = followed.run
        followed.info = followed.info or read_info(run)
        if followed.answers is None:
            self._connect(followed)
        if not run.attempts():
            since = followed.info.created if followed.info else _age_of(run)
            creator = followed.info.creator if followed.info else None
            followed.outcomes[0] = (0.0, no_attempt(run, creator, since, self._clock()))
        followed.files = [self._settle(followed, self._reader.read(attempt)) for attempt in run.attempts()]

    def _connect(self, followed: _Followed) -> None:
        try:
            scheduler = self._scheduler_for(followed.run)
        except UserError as error:
            followed.error = str(error)
            return
        followed.error = None
        followed.answers = self._answers.setdefault(id(scheduler), SchedulerAnswers(scheduler, clock=self._clock))

    def _settle(self, followed: _Followed, files: AttemptFiles) -> AttemptFiles:
        """Look up a submission that left no job id, now and then."""
        number = files.attempt.number
        if (files.job is not None and files.job_id is not None) or files.void is not None or followed.answers is None:
            return files
        asked, _ = followed.outcomes.get(number, (0.0, None))
        if self._clock() - asked < RECONCILE_S:
            return files
        outcome = reconcile(followed.run, files.attempt, followed.answers.scheduler, clock=self._clock)
        followed.outcomes[number] = (self._clock(), outcome)
        return self._reader.read(files.attempt)

    def _ask(self, fresh: bool, background: bool) -> None:
        wanted: dict[int, tuple[SchedulerAnswers, list[str]]] = {}
        for followed in self._followed.values():
            if followed.answers is not None:
                _, ids = wanted.setdefault(id(followed.answers), (followed.answers, []))
                ids.extend(_open_jobs(followed.files))
        for answers, ids in wanted.values():
            if background:
                answers.ask_behind(ids)
            else:
                answers.ask(ids, fresh=fresh)
        for answers, _ in wanted.values():
            answers.answered(PATIENCE_S)

    def _status(self, followed: _Followed) -> RunStatus:
        now = self._clock()
        followed.cases = [self._case(followed, at, now) for at in range(len(followed.files))]
        attempts = tuple(observe(case) for case in followed.cases)
        state, reason, source, age = self._word(followed, attempts, now)
        progress = Progress()
        if attempts and followed.files[-1].output:
            progress = self._progress.read(followed.files[-1], attempts[-1].started)
        left = unfinished(followed.cases[-1].end, progress) if state == "COMPLETED" else None
        if left is not None:
            state, reason = "FAILED", left
        decided = decided_of(followed.files[-1].verdict) if followed.files else None
        undecided = decided is None and bool(attempts) and _wants_a_verdict(state, followed.cases[-1])
        state, reason = with_verdict(state, reason, decided)
        info = followed.info
        return RunStatus(
            run=followed.run.name,
            name=info.name if info else followed.run.name,
            site=info.site if info else "",
            folder=followed.run.path,
            state=state,
            reason=reason,
            job_id=attempts[-1].job_id if attempts else None,
            source=source,
            age_s=age,
            attempts=attempts,
            progress=progress,
            undecided=undecided,
        )

    def _word(
        self, followed: _Followed, attempts: tuple[AttemptStatus, ...], now: float
    ) -> tuple[str, str | None, str, float | None]:
        if not attempts:
            return "SUBMITTING", followed.outcomes[0][1].reason, "none", None
        case, last = followed.cases[-1], attempts[-1]
        state, reason = run_state(last, case, self._never)
        record = case.record
        if case.requeued and record is not None:
            return state, reason, record.source, max(0.0, now - record.as_of)
        return state, reason, last.source, last.age_s

    def _case(self, followed: _Followed, at: int, now: float) -> AttemptView:
        files = followed.files[at]
        job_id = files.job_id
        superseded = job_id is not None and any(later.job_id == job_id for later in followed.files[at + 1 :])
        answer = followed.answers.of(job_id) if followed.answers and job_id else SchedulerAnswer(error=followed.error)
        outcome = followed.outcomes.get(files.attempt.number)
        case = AttemptView(
            files=files,
            answer=answer,
            now=now,
            superseded=superseded,
            submitting=outcome[1].reason if outcome else followed.error,
            limits=self._limits,
        )
        word = case.last_word
        if word is not None and not superseded:
            keep(files, word)
        return case


def _open_jobs(attempts: list[AttemptFiles]) -> list[str]:
    """The jobs whose last word is not on record; an earlier start of a requeued job is not asked about."""
    newest = {files.job_id: files for files in attempts}
    return [
        job_id
        for job_id, files in newest.items()
        if job_id is not None and files.void is None and record_of(files.final) is None
    ]


def _wants_a_verdict(state: str, case: AttemptView) -> bool:
    """Whether a driver has to decide on an attempt in this state; one that ended well after a warning may go on."""
    if state == "COMPLETED":
        return case.end is not None and values.flag(case.end.get("warned"))
    if case.files.void == NEVER_SUBMITTED and case.files.attempt.number == 1:
        return False  # a person saw that submission fail
    return state in FINAL_RUN_STATES


def _age_of(run: RunFolder) -> float:
    try:
        return run.path.stat().st_mtime
    except OSError:
        return time.time()
