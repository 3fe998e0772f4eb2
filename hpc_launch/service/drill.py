"""The drill: warn a short run as before its end, and check that it saves and that the next attempt resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpc_launch.agent.checkpoints import CheckpointFound, newest_first
from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.retry.decision import next_attempt
from hpc_launch.runs.checkpoint_files import near_miss, newest_checkpoint, rule_of
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.progress_reader import first_step
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker, still_alive
from hpc_launch.runs.status.wait_for_end import SHORT_RUN_S, poll_until
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.submit_attempt import submit_new, submit_next
from hpc_launch.schedulers.scheduler import scheduler_for
from hpc_launch.service.check import announce
from hpc_launch.service.listener import Listener
from hpc_launch.service.poll import tracker_of
from hpc_launch.service.submit import warn_about_shared_checkpoints

LEAD_S = 120.0
"""How long a training may take to save and end, where the job file sets no `signal_before`."""
END_S = 60.0
"""How much later than the training its job may end."""


@dataclass
class DrillResult:
    """The result of a drill. Times are seconds; None for what was not reached."""

    run: str
    warned_at_step: int | None = None
    saved: bool | None = None
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    saved_after_s: float | None = None
    ended_after_s: float | None = None
    resumed: bool | None = None
    resumed_at_step: int | None = None
    fault: str | None = None

    @property
    def good(self) -> bool:
        """Whether a checkpoint appeared, the training ended by itself, and the next attempt resumed from it."""
        return self.fault is None and bool(self.saved) and bool(self.resumed)

    def as_json(self) -> dict[str, Any]:
        return {"good": self.good, **asdict(self)}


def _ready_for_drill(job: Path, *, site: str | None, sets: Sequence[str]) -> tuple[PreparedJob, list[str]]:
    """The short job, and the `--set` options that derive it from the job. Raises Refused."""
    asked = prepare_job(job, site=site, sets=sets)
    spec = asked.loaded.resolved.job
    short = [f"{key}={json.dumps(value)}" for key, value in spec.drill.set.items()]
    # The drill itself makes the next attempt, and nobody else.
    all_sets = [f"name={asked.plan.name[:58]}-drill", "retry.max_attempts=1", "notify=null", *short, *sets]
    ready = prepare_job(job, site=site, sets=all_sets)
    findings = []
    if ready.plan.continuation.checkpoint is None:
        message = "the drill cannot see checkpoints: the job does not say where they are"
        findings.append(_finding(ready, message, "add `checkpoint: {dir: …, pattern: …}`", "checkpoint"))
    if "step" not in ready.plan.progress:
        message = "the drill cannot see the training's steps"
        hint = r"add `progress: {step: 'step (\d+)'}`, as the log has it"
        findings.append(_finding(ready, message, hint, "progress"))
    if findings:
        raise Refused(findings)
    return ready, all_sets


def drill(
    job: Path, index: Index, listener: Listener, *, site: str | None, sets: Sequence[str], preempt: bool = False
) -> DrillResult:
    """Run the drill. `preempt`: as a preemption does it that sends SIGTERM to the steps, in place of the warning.

    Raises as a submission does. Whatever happens nothing is left running.
    """
    ready, all_sets = _ready_for_drill(job, site=site, sets=sets)
    announce(ready, listener, ready.warnings)
    if preempt and ready.plan.scheduler == "local":
        raise UsageError("--preempt requires Slurm", "omit --preempt, or name a Slurm site with --site")
    warn_about_shared_checkpoints(ready.plan, index, listener, trial="the drill")
    scheduler, say = scheduler_for(ready.plan.submitted_to, ready.plan.cluster), listener.say
    run, _, job_id = submit_new(first_attempt(ready, all_sets), scheduler, index=index)
    outcome = DrillResult(run.name)
    say(f"{run.name}: job {job_id}; waiting for the first step")
    watched = _WatchedDrill(ready, run, outcome, tracker_of([run], index), say)
    try:
        _first(watched, lambda: scheduler.warn(job_id, preempt=preempt))
        if preempt and outcome.fault is not None and outcome.saved is False:
            outcome.fault += "; here a preemption gives no warning, so save often"
        if outcome.fault is None:
            say("submitting the next attempt")
            given_up = time.monotonic() + END_S
            while still_alive(run, scheduler) is not None and time.monotonic() < given_up:
                time.sleep(SHORT_RUN_S)
            if len(run.attempts()) == 1:
                submit_next(run, next_attempt(run)[1], scheduler, index=index)
            _second(watched, run.attempt(2))
    finally:
        cancel_run(run, scheduler)
    return outcome


@dataclass(frozen=True)
class _WatchedDrill:
    """The run of the drill, and what was found out about it."""

    ready: PreparedJob
    run: RunFolder
    outcome: DrillResult
    tracker: RunTracker
    say: Callable[[str], None]

    def until(self, wanted: Callable[[RunStatus], bool], seconds: float | None = None) -> RunStatus:
        """As `poll_until`."""
        return poll_until(self.tracker, self.run, wanted, seconds=seconds)


def _first(watched: _WatchedDrill, warn: Callable[[], None]) -> None:
    """The attempt that is warned: its checkpoint, and its end."""
    outcome = watched.outcome
    status = watched.until(lambda status: status.progress.step is not None)
    if status.progress.step is None:
        outcome.fault = f"the first attempt showed no step: {status.state}: {status.reason or 'see its log'}"
        return
    time.sleep(watched.ready.loaded.resolved.job.drill.after)
    status = watched.until(lambda _: True)
    step = outcome.warned_at_step = status.progress.step
    if _first_is_over(status):
        outcome.fault = f"the training ended before the warning, at step {step}: make it longer"
        return
    rule, warned = rule_of(watched.run), time.time()
    before = {found.path: found for found in newest_first(rule)} if rule is not None else {}  # incomplete ones, too
    watched.say(f"warning the training at step {step}")
    warn()
    lead = float(watched.ready.plan.signal_before_s or LEAD_S)

    def look(status: RunStatus) -> bool:
        found = newest_checkpoint(watched.run)
        known = before.get(found.path) if found is not None else None
        # Begun after the warning; one without a step is overwritten each time.
        new = found is not None and (known is None or (found.step is None and found.time > max(known.time, warned)))
        if found is not None and new and str(found.path) != outcome.checkpoint:
            outcome.saved, outcome.checkpoint, outcome.checkpoint_step = True, str(found.path), found.step
            outcome.saved_after_s = round(max(found.time - warned, 0.0), 1)
            watched.say(f"a checkpoint appeared after {outcome.saved_after_s} s: {found.path.name}")
        return _first_is_over(status)

    status = watched.until(look, lead)
    look(status)
    outcome.saved = bool(outcome.saved)
    if not _first_is_over(status):
        saved = "a checkpoint appeared, but" if outcome.saved else "no checkpoint appeared, and"
        outcome.fault = f"{saved} the training did not end within {lead:g} s of the warning"
    elif not outcome.saved:
        reason = status.attempts[0].reason or status.reason
        ended_so = f"it ended{f' ({reason})' if reason else ''}"
        outcome.fault = f"no checkpoint appeared after the warning: {near_miss(watched.run) or ended_so}"
    else:
        outcome.fault = _not_by_the_warning(status, outcome, before)
        ended = status.attempts[0].ended
        outcome.ended_after_s = None if ended is None else round(max(ended - warned, 0.0), 1)


def _not_by_the_warning(status: RunStatus, outcome: DrillResult, before: dict[Path, CheckpointFound]) -> str | None:
    """Why the checkpoint may be one that the training saves anyway; None where the warning made it save and end."""
    if len(status.attempts) > 1:
        return None  # the progress is that of the next attempt
    step, total, saved = status.progress.step, status.progress.total, outcome.checkpoint_step
    if step is not None and total is not None and step >= total:
        return f"the training ignored the warning and ran to its last step, {total}: make it longer"
    if saved is None:
        return None
    if step is not None and step > saved + 1:
        lost = f"steps {saved + 1} to {step} would be lost"
        return f"the checkpoint of step {saved} is a periodic one: the training ended at step {step}, and {lost}"
    steps = sorted({found.step for found in before.values() if found.step is not None})
    gaps = {later - earlier for earlier, later in pairwise(steps)}
    period = gaps.pop() if len(gaps) == 1 else 1
    if period > 1 and (saved - steps[-1]) % period == 0:
        hint = "repeat the drill, or save less often in it (`drill.set`)"
        return (
            f"the checkpoint of step {saved} may be a periodic one, as the training saves every {period} steps: {hint}"
        )
    return None


def _second(watched: _WatchedDrill, attempt: AttemptFolder) -> None:
    """The attempt that must resume: its first step is after the checkpoint's step."""
    outcome = watched.outcome
    status = watched.until(lambda _: first_step(attempt) is not None)
    step = outcome.resumed_at_step = first_step(attempt)
    if step is None:
        outcome.resumed = False
        outcome.fault = f"the next attempt showed no step: {status.state}: {status.reason or 'see its log'}"
        return
    behind = outcome.checkpoint_step if outcome.checkpoint_step is not None else outcome.warned_at_step
    outcome.resumed = behind is None or step > behind
    watched.say(f"the next attempt began with step {step}")
    if not outcome.resumed:
        outcome.fault = f"the next attempt began with step {step}, although the checkpoint is at step {behind}"


def _first_is_over(status: RunStatus) -> bool:
    # Whoever drives the run may have made the next attempt already.
    return status.final or len(status.attempts) > 1


def _finding(ready: PreparedJob, message: str, hint: str, key: str) -> Finding:
    return Finding(FindingCode.DRILL_CANNOT_MEASURE, message, ready.loaded.resolved.place(key), hint)
