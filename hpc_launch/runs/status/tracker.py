"""Follow runs: read their records, query the schedulers, settle unfinished submissions, keep final states."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from hpc_launch.agent.notify_event import CHANNELS, MOST_TRIES, claim_path, events, is_final, read
from hpc_launch.base.errors import Unreachable, UserError
from hpc_launch.job.units import counted
from hpc_launch.runs.checkpoint_files import near_miss
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.plan_record import size_change
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.records.submission import never_submitted
from hpc_launch.runs.status.attempt_state import observe
from hpc_launch.runs.status.attempt_view import SETTLE_S, AttemptView
from hpc_launch.runs.status.followed_run import FollowedRun, SchedulerAnswers
from hpc_launch.runs.status.progress_reader import Progress, ProgressReader
from hpc_launch.runs.status.run_status import (
    FINAL_RUN_STATES,
    AttemptStatus,
    RunStatus,
    run_state,
    status_of,
    successor_text,
    unfinished,
    with_verdict,
)
from hpc_launch.runs.status.startup_summary import StartupReader
from hpc_launch.runs.submitting.reconcile import no_attempt, reconcile
from hpc_launch.schedulers.scheduler import Scheduler


def notify_problems(run: RunFolder) -> list[str]:
    """One line for each channel that did not get its last message."""
    folder = str(run.path)
    if run.is_foreign or not os.path.isdir(os.path.join(folder, "notify")):
        return []
    lines: dict[str, str] = {}
    # By time, but a driver may note the end of a short run before the job notes its start.
    for name, event in sorted(events(folder), key=lambda one: (is_final(one[0]), float(one[1].get("time") or 0))):
        for channel in CHANNELS:
            tries = [read(claim_path(folder, name, channel, number)) for number in range(1, MOST_TRIES + 1)]
            last = next((one for one in reversed(tries) if one), None)
            if last is None:
                continue
            lines.pop(channel, None)
            if last.get("state") in ("failed", "unknown"):
                count = sum(bool(one) for one in tries)
                what = f"the message `{event.get('event')}` did not reach the {channel}: {last.get('why')}"
                lines[channel] = f"{what} (try {count} of {MOST_TRIES})"
    return list(lines.values())


RECONCILE_S = 10.0
"""Pause between two look-ups of a submission without a job id."""

PATIENCE_S = 0.3
"""How long a poll waits for a scheduler that is being queried in the background."""

CHECKPOINTS_S = 30.0
"""Pause between two searches of a checkpoint folder."""

SchedulerFor = Callable[[RunFolder], Scheduler]


class RunTracker:
    """Follows runs. `scheduler_for` returns one scheduler object per cluster, whichever run asks."""

    def __init__(
        self,
        runs: Iterable[RunFolder],
        scheduler_for: SchedulerFor,
        *,
        settle_s: float = SETTLE_S,
        seen: Callable[[Sequence[RunStatus]], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._followed = {run.name: FollowedRun(run) for run in runs}
        self._scheduler_for = scheduler_for
        self._settle_s = settle_s
        self._seen = seen
        self._clock = clock
        self._answers: dict[int, SchedulerAnswers] = {}
        self._reader = Reader()
        self._progress = ProgressReader()
        self._startup = StartupReader()
        self.last: dict[str, RunStatus] = {}

    @property
    def now(self) -> float:
        """The current time, in seconds since the epoch."""
        return self._clock()

    def poll(
        self, *, fresh: bool = False, background: bool = False, doing: Callable[[str], None] = lambda _: None
    ) -> dict[str, RunStatus]:
        """The state of every run, by name.

        Args:
            fresh: Query the schedulers at once, for a user who just changed something.
            background: Do not wait for a scheduler; a later poll uses its answer.
            doing: Called with what the poll is about to do, as text.
        """
        count = len(self._followed)
        for followed in self._followed.values():
            doing(f"reading {counted(count, 'run folder')}")
            self._read(followed, doing)
        doing("querying the scheduler")
        self._ask(fresh, background)
        self.last = {name: self._status(followed) for name, followed in self._followed.items()}
        if self._seen is not None:
            self._seen(list(self.last.values()))
        return self.last

    def views(self, run: RunFolder) -> list[AttemptView]:
        """The facts that the last poll decided from, by attempt."""
        return self._followed[run.name].views

    def _read(self, followed: FollowedRun, doing: Callable[[str], None]) -> None:
        run = followed.run
        followed.check_folder()
        if followed.unreadable is not None:
            return
        followed.info = followed.info or read_info(run)
        if followed.answers is None:
            self._connect(followed)
        followed.stamp = run.attempts_stamp()
        if not run.attempts():
            creator = followed.info.process if followed.info else None
            followed.unsettled[0] = (0.0, no_attempt(run, creator, followed.since, self._clock()))
        followed.files = [self._settle(followed, self._reader.read(attempt), doing) for attempt in run.attempts()]

    def _connect(self, followed: FollowedRun) -> None:
        try:
            scheduler = self._scheduler_for(followed.run)
        except UserError as error:
            followed.error = str(error)
            return
        followed.error = None
        followed.answers = self._answers.setdefault(id(scheduler), SchedulerAnswers(scheduler, clock=self._clock))

    def _settle(self, followed: FollowedRun, files: AttemptFiles, doing: Callable[[str], None]) -> AttemptFiles:
        """Look up a submission without a job id from time to time, and a local job that the user's list lacks."""
        number = files.attempt.number
        listed = followed.info is None or followed.info.scheduler == "slurm"  # by the scheduler itself
        if files.job_id is not None and files.final is None and not listed:
            from hpc_launch.schedulers.local.local_jobs import adopt

            adopt(files.job_id, files.attempt.path)
        if (files.job is not None and files.job_id is not None) or files.void is not None or followed.answers is None:
            return files
        asked, _ = followed.unsettled.get(number, (0.0, None))
        if self._clock() - asked < RECONCILE_S:
            return files
        doing("querying the scheduler")
        reason = reconcile(followed.run, files.attempt, followed.answers.scheduler, self._clock)
        followed.unsettled[number] = (self._clock(), reason)
        return self._reader.read(files.attempt)

    def _ask(self, fresh: bool, background: bool) -> None:
        wanted: dict[int, tuple[SchedulerAnswers, list[str]]] = {}
        for followed in self._followed.values():
            if followed.answers is not None:
                _, ids = wanted.setdefault(id(followed.answers), (followed.answers, []))
                ids.extend(followed.open_jobs(self._clock()))
        for answers, ids in wanted.values():
            if background:
                answers.ask_in_background(ids)
            else:
                answers.ask(ids, fresh=fresh)
        for answers, _ in wanted.values():
            answers.answered(PATIENCE_S)

    def _status(self, followed: FollowedRun) -> RunStatus:
        now = self._clock()
        followed.views = [followed.view(at, now, self._settle_s) for at in range(len(followed.files))]
        attempts = tuple(observe(view) for view in followed.views)
        state, reason, source, age = self._run_state(followed, attempts, now)
        progress = Progress()
        if attempts and (followed.files[-1].output or state == "COMPLETED"):
            progress = self._progress.read(followed.files[-1])
        left = unfinished(followed.views[-1].end, progress) if state == "COMPLETED" else None
        if left is not None:
            state, reason = "FAILED", left
        elif state == "COMPLETED" and progress.said and progress.step and progress.step < (progress.total or 0):
            reason = f"it ended early, at step {progress.step} of {progress.total}, and said: {progress.said}"
        starts = state in ("STARTING", "RUNNING") and progress.step is None
        startup = self._startup.read(followed.files[-1]) if starts else None
        verdict = followed.files[-1].verdict if followed.files else None
        undecided = verdict is None and bool(attempts) and _needs_verdict(state, followed.views[-1])
        state, reason = with_verdict(state, reason, verdict)
        if undecided and never_submitted(followed.files[-1].void):
            state = "RETRYING"  # whoever looks next submits it again, or stops the run
        successor = followed.successor()
        if state == "RETRYING" and successor is not None:
            reason = f"{reason}; {successor_text(successor)}"
        if state == "RETRYING" and (postponed := followed.files[-1].postponed) is not None:
            reason = f"{reason}; {postponed.words}"
        live = followed.views[-1].live if followed.views else None
        over = state in FINAL_RUN_STATES and followed.is_over(attempts[-1].ended, now)
        return status_of(
            followed.run,
            followed.info,
            state,
            reason,
            job_id=attempts[-1].job_id if attempts else None,
            source=source,
            age_s=age,
            attempts=attempts,
            progress=progress,
            startup=startup,
            undecided=undecided,
            cancel_due=any(view.cancel_due for view in followed.views),
            pause_until=_pause_until(followed.files, state),
            expected_start=live.expected_start if live is not None else None,
            successor=successor,
            roles=followed.files[-1].roles if followed.files else None,
            warnings=self._warnings(followed, state, attempts, now),
            hosts=followed.hosts(state, attempts[-1].nodes if attempts else ()),
            folder_missing=followed.missing,
            final_stamp=followed.stamp if over else None,
        )

    def _warnings(
        self, followed: FollowedRun, state: str, attempts: tuple[AttemptStatus, ...], now: float
    ) -> tuple[str, ...]:
        warnings = [
            f"{view.cancelled_by}, but the scheduler was not reached: the next command ends the job"
            for view in followed.views
            if view.files.cancel is not None and view.files.cancel.sent is None and not view.over
        ]
        warnings += notify_problems(followed.run)
        if len(attempts) > 1 and state in ("PENDING", "STARTING", "RUNNING"):
            warnings += filter(None, [size_change(followed.files[-1].attempt)])
        if state not in ("RUNNING", "ENDING") or attempts[-1].started is None:
            return tuple(warnings)
        if now - followed.missed[0] >= CHECKPOINTS_S:
            # What was written just now may not be complete yet.
            followed.missed = now, near_miss(followed.run, attempts[-1].started, now - CHECKPOINTS_S)
        missed = followed.missed[1]
        if missed is not None:
            warnings.append(f"no checkpoint is recognized, so no attempt could resume: {missed}")
        return tuple(warnings)

    def _run_state(
        self, followed: FollowedRun, attempts: tuple[AttemptStatus, ...], now: float
    ) -> tuple[str, str | None, str, float | None]:
        if followed.unreadable is not None:
            return "UNKNOWN", followed.unreadable_reason, "none", None
        if not attempts:
            return "SUBMITTING", followed.unsettled[0][1], "none", None
        view, last = followed.views[-1], attempts[-1]
        state, reason = run_state(last, view)
        record = view.record
        if view.requeued and record is not None:
            return state, reason, record.source, max(0.0, now - record.as_of)
        return state, reason, last.source, last.age_s


def _needs_verdict(state: str, view: AttemptView) -> bool:
    """Whether a driver has to decide on an attempt in this state; one that ended after a warning may continue."""
    if state == "COMPLETED" or (state == "CANCELLED" and view.files.claim is None):
        return view.warned  # a job that was cancelled before it began leaves nothing to diagnose
    seen = never_submitted(view.files.void) and view.files.attempt.number == 1  # the user saw that submission fail
    return state in FINAL_RUN_STATES and not seen


def _pause_until(files: list[AttemptFiles], state: str) -> float | None:
    """The end of the pause before the attempt that a verdict asks for: one that is due, or one that waits."""
    waits = {"RETRYING": 1, "PENDING": 2, "STUCK": 2, "SUBMITTING": 2}.get(state)
    verdict = files[-waits].verdict if waits is not None and len(files) >= waits else None
    return verdict.not_before if verdict is not None and verdict.again else None


UNSEEN_S = 60.0
"""A job younger than this may be missing from the scheduler's answer just because it is new."""


def still_alive(run: RunFolder, scheduler: Scheduler, *, ending: bool = False) -> str | None:
    """What of the run is still alive, as text; None where every attempt is over or void. Asks the scheduler at once.

    `ending`: a last attempt whose script has ended counts as over even if its job is still completing: only for a next
    job that Slurm starts after it (`--dependency=afterany`). Raises Unreachable where that cannot be determined.
    """
    tracker = RunTracker([run], lambda _: scheduler)
    tracker.poll(fresh=True)
    return alive_by(tracker, run, ending=ending)


def alive_by(tracker: RunTracker, run: RunFolder, *, ending: bool = False) -> str | None:
    """The same by the last poll of a tracker."""
    views = tracker.views(run)
    if not views:
        return tracker.last[run.name].reason or "it is being submitted"
    for view in views:
        if ending and view is views[-1] and script_ended(view):
            continue
        alive = _alive(view)
        if alive is not None:
            return f"attempt {view.files.attempt.number}: {alive}"
    return None


def script_ended(view: AttemptView) -> bool:
    """Whether the script has ended: Slurm may still be cleaning up the job."""
    return view.end is not None and not view.superseded and not view.requeued


def _alive(view: AttemptView) -> str | None:
    if view.files.void is not None or view.superseded:
        return None
    if view.job_id is None:
        return view.submitting or "its submission is not settled"
    if view.files.final is not None:
        return None
    if view.answer.error is not None:
        raise Unreachable(
            f"cannot determine whether job {view.job_id} is over: {view.answer.error}",
            hint="nothing was submitted; try again when the scheduler answers",
        )
    if view.live is not None:
        return f"job {view.job_id} is {view.live.state}"
    if view.final_record is not None:
        return None
    if view.end is None and view.submitted is not None and time.time() - view.submitted < UNSEEN_S:
        return f"job {view.job_id} was submitted a moment ago, and the scheduler does not show it yet"
    return None
