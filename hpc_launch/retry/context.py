"""What a driver knows of a run's last attempt, and what it asks the scheduler and the file system for the diagnosis."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from hpc_launch.diagnose.decide_verdict import AttemptProgress
from hpc_launch.diagnose.evidence import DriverFacts, NeverStarts
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.retry.drivers import NOTHING, DriverOutcome
from hpc_launch.runs.checkpoint_files import near_miss, newest_checkpoint, rule_of
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import MAY_COME_BACK, Reader, stuck_since
from hpc_launch.runs.records.node_records import read_hang
from hpc_launch.runs.records.plan_record import newest_plan, plan_of
from hpc_launch.runs.records.run_info import read_info, why_not_own
from hpc_launch.runs.records.verdict_record import VerdictRecord, read_verdict
from hpc_launch.runs.status.attempt_view import AttemptView
from hpc_launch.runs.status.run_status import RunStatus, finished
from hpc_launch.runs.status.tracker import RunTracker, script_ended
from hpc_launch.schedulers.scheduler import JobRecord, Scheduler
from hpc_launch.schedulers.slurm.slurm_reasons import advice, failed_to_start

LAUNCH_S = 10.0
"""Patience with a job that Slurm holds because a node could not start it: nobody repairs that, so it is seen twice."""
CLOCKS_S = 60.0
"""How far the clocks of a node and of a file server may be apart."""
KILLED, TERMINATED = 137, 143
"""The exit codes of a shell whose child was ended by SIGKILL and by SIGTERM."""


@dataclass(frozen=True)
class RetryContext:
    """The last attempt of a run as a driver sees it."""

    run: RunFolder
    view: AttemptView
    status: RunStatus
    plan: RetryPlan
    scheduler: Scheduler
    slurm: bool

    @property
    def attempt(self) -> AttemptFolder:
        """The folder of the attempt."""
        return self.view.files.attempt

    def verdicts_before(self) -> list[VerdictRecord | None]:
        """The verdicts on the attempts before this one, oldest first; None where there is none."""
        return [read_verdict(one) for one in self.run.attempts() if one.number < self.attempt.number]

    @property
    def follows_verdict(self) -> bool:
        """Whether a verdict asked for this attempt, not a person."""
        before = self.verdicts_before()
        return bool(before) and before[-1] is not None and before[-1].again

    @property
    def excluded(self) -> tuple[str, ...]:
        """The nodes that hpc-launch excluded from this attempt: by node health, then the run's own, the newest last."""
        intent = self.view.files.intent
        return (*intent.overrides.ledger, *intent.overrides.exclude) if intent is not None else ()


def read_context(run: RunFolder, tracker: RunTracker, scheduler: Scheduler) -> RetryContext | None:
    """The context of a run; None where this user's drivers must leave the run alone."""
    views, status, info = tracker.views(run), tracker.last.get(run.name), read_info(run)
    if not views or status is None or info is None or why_not_own(run) is not None:
        return None
    plan = newest_plan(run)
    # A run of `hpc-launch run` lives in an allocation and ends with it.
    if plan is None or plan.recovery is None or plan.scheduler != info.scheduler:
        return None
    view = views[-1]
    if view.superseded or view.requeued or _may_come_back(view, plan.requeue):
        return None
    return RetryContext(run, view, status, plan.recovery, scheduler, slurm=info.scheduler == "slurm")


def left_alone(run: RunFolder) -> DriverOutcome:
    """The outcome for a run that has no context: with the reason if it is this user's, but others can change it."""
    reason = None if run.is_foreign else why_not_own(run)
    return DriverOutcome("nothing", f"not continued: {reason}") if reason is not None else NOTHING


def _may_come_back(view: AttemptView, requeue: bool) -> bool:
    """Whether Slurm may still requeue the job: nothing new is submitted until then."""
    record = view.final_record
    if not requeue or view.files.final is not None or record is None or record.state not in MAY_COME_BACK:
        return False
    return not view.files.lost_first(record)  # such a job was cancelled


def is_over(context: RetryContext, *, inside: bool) -> bool:
    """Whether the attempt is over and needs a diagnosis.

    `inside` the job the cause of a signal is not known yet, unless the scheduler says so (`DriverFacts.ending`).
    """
    view = context.view
    if inside and ended_from_outside(context):
        return False
    ended = script_ended(view) and not (view.disturbed and not inside)
    return context.status.undecided or (ended and (view.warned or view.exit_code != 0))


def ended_from_outside(context: RetryContext) -> bool:
    """Whether Slurm may have ended the script, as the job's own hook sees it.

    Slurm does not leave a job RUNNING whose processes it kills: then something on the node killed a rank. It does
    after the SIGTERM that announces a preemption, but so does the watcher that ends a hanging launcher, and that tells.
    """
    view = context.view
    told = view.exit_code == KILLED or (view.exit_code == TERMINATED and read_hang(context.attempt) is not None)
    if not view.disturbed or not told or view.signal is not None or view.files.cancel is not None:
        return view.disturbed
    live = view.live
    return live is None or live.state != "RUNNING" or view.ended is None or live.as_of <= view.ended


def driver_facts(context: RetryContext, *, inside: bool) -> DriverFacts:
    """Gather what only a driver can ask for. Each question is asked only where a rule needs the answer."""
    view = context.view
    ending = view.live if inside and view.disturbed else None
    silent_s = None if inside else silence_of_forgotten(context)
    if silent_s is not None and (silent_s < context.plan.retry.lost_after or not _same_cluster(context)):
        silent_s = None  # not lost, or not yet
    return DriverFacts(
        ending=ending,
        preempted=ending is not None and _is_preempted(context, ending),
        forgotten=context.status.reason or "" if silent_s is not None else None,
        silent_s=silent_s or 0.0,
        went_further=_went_further(context),
        excluded=context.excluded if view.files.void is not None and context.follows_verdict else (),
    )


def never_starts(context: RetryContext) -> tuple[NeverStarts | None, float]:
    """The pending job that can never start, and for how many more seconds somebody may still repair it.

    None where a person must act, such as releasing a hold.
    """
    live = context.view.live
    kind = failed_to_start(live.reason) if live is not None else None
    if live is None or kind is None:
        return None, 0.0
    patience = LAUNCH_S if kind == "node_failure" else float(context.plan.retry.stuck_after)
    explained = advice(live.reason, live.job_id)
    meaning = explained.meaning if explained is not None else ""
    return NeverStarts(kind, live, meaning), patience - (live.as_of - stuck_since(context.attempt, live))


def _is_preempted(context: RetryContext, job: JobRecord) -> bool:
    if job.reason == "TimeLimit" or job.state != "COMPLETING" or context.view.files.cancel is not None:
        return False
    return context.scheduler.preempted(job.job_id)


def silence_of_forgotten(context: RetryContext) -> float | None:
    """For how long a job that Slurm has forgotten wrote nothing; None where it is known.

    A job that never began is not meant: nothing is known of it at all.
    """
    view, answer, files = context.view, context.view.answer, context.view.files
    asked = context.slurm and answer.error is None and answer.answered is not None
    if not asked or context.status.state != "UNKNOWN" or view.record is not None or view.final_record is not None:
        return None
    if view.end is not None or files.cancel is not None or files.claim is None or files.claim.job_id != view.job_id:
        return None
    return view.now - max(_write_times(context.attempt), default=view.now)


def vanished(context: RetryContext) -> bool:
    """Whether a job that never began is no longer known to the cluster that it was submitted to."""
    view, answer, files = context.view, context.view.answer, context.view.files
    asked = context.slurm and answer.error is None and answer.answered is not None and view.record is None
    if not asked or context.status.state != "UNKNOWN" or files.claim is not None or files.job is None:
        return False
    waited = view.now - max(_write_times(context.attempt), default=view.now)
    return waited >= context.plan.retry.lost_after and _same_cluster(context)


def _write_times(attempt: AttemptFolder) -> Iterator[float]:
    """When each file of the attempt was last written, including its logs and the watcher's notes."""
    for folder in (attempt.path, attempt.logs, attempt.agent):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat().st_mtime


def _same_cluster(context: RetryContext) -> bool:
    """Whether the cluster that does not know the job is the one it was submitted to: clusters may share storage."""
    for attempt in reversed(context.run.attempts()):
        job = Reader().read(attempt).job
        if job is not None and job.cluster is not None:
            return job.cluster == context.scheduler.cluster()
    return False


def _went_further(context: RetryContext) -> bool | None:
    """Of a training that was warned and ended with 0: whether it has steps left and got further; None for others."""
    view = context.view
    if not view.warned or view.disturbed or view.exit_code != 0 or not script_ended(view):
        return None
    done = finished(view.end, context.status.progress)
    return not done if done is not None else progress_of(context)[1].further


def complete(context: RetryContext, step: int | None) -> str | None:
    """Why no step of the training is left, as text; None where some are, or nothing tells. It may fail after its end.

    `step` is that of `progress_of`: where the job has checkpoints, the last step counts once it is saved.
    """
    if os.path.isfile(context.attempt.done):
        return "the training created HPC_LAUNCH_DONE_FILE"
    total = context.status.progress.total
    return f"the training reached its last step, {step} of {total}" if step and total and step >= total else None


def progress_of(context: RetryContext) -> tuple[int | None, AttemptProgress]:
    """The step that the attempt reached, by its newest checkpoint, or by its log where the job has no checkpoints.

    With whether that is further than all attempts before it.
    """
    view = context.view
    steps = [verdict.step for verdict in context.verdicts_before() if verdict is not None]
    before = max((step for step in steps if step is not None), default=0)
    if rule_of(context.run) is None:
        if (step := context.status.progress.step) is None:
            return None, AttemptProgress(False, _unknown_step(context))
        return step, _compared(step, before, "its log shows step")
    newest = newest_checkpoint(context.run)
    if newest is None:
        miss = near_miss(context.run)
        return None, AttemptProgress(False, f"it left no checkpoint{f': {miss}' if miss else ''}")
    if view.started is not None and newest.time < view.started - CLOCKS_S:
        old = f"the newest checkpoint, {newest.path.name}, is older than its start"
        return newest.step, AttemptProgress(False, old)
    if newest.step is None:
        return None, AttemptProgress(True, f"the newest checkpoint is {newest.path.name}")
    resumed = (view.end.resumed_step if view.end is not None else None) or 0
    return newest.step, _compared(newest.step, max(before, resumed), "the newest checkpoint is at step")


def _unknown_step(context: RetryContext) -> str:
    """Why nothing is known of an attempt's progress in a job without `checkpoint:`, and what to add."""
    plan = plan_of(context.attempt)
    known = plan is not None and plan.progress.step is not None
    what = "`progress.step` matches no line of its log" if known else "nor `progress:`"
    return f"the job file has no `checkpoint:`{', and ' if known else ' '}{what}. Save checkpoints and name them there"


def _compared(step: int | None, before: int, what: str) -> AttemptProgress:
    if step is None:
        return AttemptProgress(False)
    return AttemptProgress(step > before, f"{what} {step}" + (f", the previous one at step {before}" if before else ""))
