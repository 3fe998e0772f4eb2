"""The verdict on a run's last attempt: from its diagnosis, the verdicts before, its checkpoints and its policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from hpc_launch.base.errors import UserError
from hpc_launch.drive.attempts import next_attempt
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.recover.diagnosis import Action, Diagnosis, Verdict
from hpc_launch.recover.retry_changes import BatchState, ChangeFacts
from hpc_launch.recover.retry_policy import AttemptProgress, PastAttempt, Policy, decide
from hpc_launch.run.checkpoint_files import near_miss, newest_checkpoint, rule_of
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records.plan_record import plan_of
from hpc_launch.run.records.verdict_record import VerdictRecord, read_verdict, verdict_record
from hpc_launch.run.status.attempt_view import AttemptView
from hpc_launch.run.status.run_status import RunStatus
from hpc_launch.schedulers.scheduler import Scheduler

NEVER_SUBMITTED_CAUSE = "never_submitted"
"""The cause of an attempt whose driver was killed before the scheduler had it."""
TOO_FEW = "too_few_nodes_left"
"""The cause of an attempt that our own exclusions left too few nodes for."""
MOST_VOID = 5
"""So many attempts in a row that were never submitted end a run: something kills every driver."""


@dataclass(frozen=True)
class RetryContext:
    """The last attempt of a run, as the driver found it."""

    run: RunFolder
    case: AttemptView
    status: RunStatus
    plan: RetryPlan
    scheduler: Scheduler
    slurm: bool

    @property
    def attempt(self) -> AttemptFolder:
        return self.case.files.attempt

    def before(self) -> list[tuple[AttemptFolder, VerdictRecord | None]]:
        """The attempts before this one with their verdicts, the first one first."""
        attempts = [attempt for attempt in self.run.attempts() if attempt.number < self.attempt.number]
        return [(attempt, read_verdict(attempt)) for attempt in attempts]


def make_decision(found: RetryContext, told: Diagnosis, *, withdrawn: bool = False) -> VerdictRecord:
    """The verdict on what `told` says of the last attempt. Nothing is written."""
    earlier = [verdict for _, verdict in found.before() if verdict is not None]
    step, progress = progress_of(found)
    recorded = plan_of(found.attempt)
    excluded = recorded.excluded if recorded is not None else ()
    policy = Policy(found.plan.retry, _facts(found, excluded, told))
    verdict = decide(told, _history(earlier), progress, policy)
    if verdict.sets:
        verdict = _possible(found.run, verdict)
    now = found.case.now
    return verdict_record(told, verdict, now, further=progress.further, step=step, withdrawn=withdrawn)


def once_more(found: RetryContext) -> VerdictRecord | None:
    """The verdict on an attempt that no scheduler ever got: the one before it, again. None for a run's first one."""
    earlier = found.before()
    last = earlier[-1][1] if earlier else None
    if last is None or not last.again:
        return None
    told = Diagnosis("unknown", cause=NEVER_SUBMITTED_CAUSE, confidence="high")
    void = sum(verdict is not None and verdict.cause == NEVER_SUBMITTED_CAUSE for _, verdict in earlier[-MOST_VOID:])
    if void >= MOST_VOID:
        verdict = Verdict("STOP", f"{MOST_VOID} attempts in a row were never submitted: what kills the drivers?")
    else:
        reason = "the driver of this attempt was killed before the job was submitted"
        # The ladder's place and the changes are those of the attempt that this one should have been.
        action: Action = last.action  # type: ignore[assignment]
        verdict = Verdict(action, reason, exclude=last.exclude, sets=last.sets, steps_used=last.ladder)
    return verdict_record(told, verdict, found.case.now, further=False, step=None)


def _history(earlier: Sequence[VerdictRecord]) -> list[PastAttempt]:
    """What was tried since a person last had a hand in it; attempts that never were do not count."""
    history: list[PastAttempt] = []
    for verdict in earlier:
        if not verdict.again:
            history = []
        elif verdict.cause not in (NEVER_SUBMITTED_CAUSE, TOO_FEW):
            action: Action = verdict.action  # type: ignore[assignment]
            history.append(PastAttempt(verdict.failure_class, action, verdict.further, verdict.ladder, verdict.blamed))
    return history


def progress_of(found: RetryContext) -> tuple[int | None, AttemptProgress]:
    """How far the attempt got, by its newest checkpoint, or by its log where the job has none; and whether further."""
    case = found.case
    earlier = [verdict for _, verdict in found.before() if verdict is not None]
    before = max((verdict.step for verdict in earlier if verdict.step is not None), default=0)
    if rule_of(found.run) is None:
        step = found.status.progress.step
        return step, _compared(step, before, "its log shows step")
    newest = newest_checkpoint(found.run)
    if newest is None:
        miss = near_miss(found.run)
        return None, AttemptProgress(False, f"it left no checkpoint{f': {miss}' if miss else ''}")
    if newest.step is None:
        further = case.started is not None and newest.time > case.started
        return None, AttemptProgress(further, f"the newest checkpoint is {newest.path.name}")
    resumed = (case.end.resumed_step if case.end is not None else None) or 0
    return newest.step, _compared(newest.step, max(before, resumed), "the newest checkpoint is of step")


def _compared(step: int | None, before: int, what: str) -> AttemptProgress:
    if step is None:
        return AttemptProgress(False)
    return AttemptProgress(step > before, f"{what} {step}" + (f", the one before of step {before}" if before else ""))


def _facts(found: RetryContext, excluded: tuple[str, ...], told: Diagnosis) -> ChangeFacts:
    plan, batch = found.plan, found.plan.batch
    size = found.scheduler.size(plan.partition) if told.bad_nodes else None
    return ChangeFacts(
        batch=BatchState(*structs.astuple(batch)) if batch is not None else None,
        memory=plan.memory,
        node_memory=plan.node_memory,
        time_s=plan.time_s,
        most_time_s=plan.most_time_s,
        nodes=plan.nodes,
        max_nodes=plan.max_nodes,
        spare_nodes=None if size is None else max(size - plan.least_nodes - len(plan.exclude), 0),
        queue=plan.queue,
        excluded=excluded,
    )


def _possible(run: RunFolder, verdict: Verdict) -> Verdict:
    """The verdict, or STOP where the job with its changes would be refused: nobody is there to mend it later."""
    try:
        next_attempt(run, sets=verdict.sets, exclude=verdict.exclude)
    except UserError as error:
        why = " ".join(str(error).split())
        return Verdict("STOP", f"{verdict.reason}; that cannot be: {why}")
    return verdict
