"""Decide the state of an attempt from all its sources: a pure function, as an ordered list of rules.

The first rule with an answer decides. No rule guesses: COMPLETED needs an end record with exit code 0 that the
scheduler does not contradict, and an attempt that no source knows is UNKNOWN, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpc_launch.job.hostlist import names_or_text
from hpc_launch.runs.records.submission import CANCELLED, Overrides
from hpc_launch.runs.status.attempt_view import END_RECORD_S, STALE_S, WAITING_STATES, AttemptView
from hpc_launch.runs.status.run_status import STATE_SOURCES, AttemptStatus, revoked_nodes
from hpc_launch.schedulers.scheduler import JobRecord

FAILED_STEPS = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL"})

END_REASONS = {
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the job reached its time limit",
    "NODE_FAIL": "a node of the job failed",
    "OUT_OF_MEMORY": "the job used more memory than it was given",
    "PREEMPTED": "the job was preempted by another",
    "BOOT_FAIL": "a node of the job did not start",
    "DEADLINE": "the job could not be done before its deadline",
    "REVOKED": "the job was revoked by its cluster federation",
}
"""States of the scheduler that say more than an exit code can."""


@dataclass(frozen=True)
class Observation:
    """The result of a rule. `as_of` is the time of the source's answer; None where it has none."""

    state: str
    source: str = "none"
    as_of: float | None = None
    reason: str | None = None


def _void(view: AttemptView) -> Observation | None:
    reason = view.files.void
    if reason is None:
        return None
    return Observation("CANCELLED" if reason.startswith(CANCELLED) else "VOID", reason=reason)


def _continued(view: AttemptView) -> Observation | None:
    if not view.continued:
        return None
    ending = f"{_script_ending(view) or 'it left no end record'}; the next attempt ran in the same job"
    ended_well = view.exit_code == 0 and view.signal is None
    return Observation("COMPLETED" if ended_well else "FAILED", "end_record", view.ended, ending)


def _requeued(view: AttemptView) -> Observation | None:
    if not view.requeued:
        return None
    final = view.final_record
    if final is not None and final.state in END_REASONS:
        return _by_scheduler(final, f"{END_REASONS[final.state]}, and the scheduler requeued it")
    ending = _script_ending(view)
    return Observation("REQUEUED", reason=f"{f'{ending}; ' if ending else ''}the scheduler requeued job {view.job_id}")


def _ended_from_outside(view: AttemptView) -> Observation | None:
    final = view.final_record
    if final is None or final.state not in END_REASONS:
        return None
    if final.state == "CANCELLED" and view.files.cancel is not None:
        return _by_scheduler(final, view.cancelled_by)
    detail = "" if final.reason in (None, "", "None") else f" ({final.reason})"
    return _by_scheduler(final, f"{END_REASONS[final.state]}{detail}")


def _failed(view: AttemptView) -> Observation | None:
    final = view.final_record
    if final is None or final.state != "FAILED":
        return None
    if view.exit_code == 0:
        return _by_scheduler(final, f"the scheduler says FAILED{_exit_text(final)} although the script ended with 0")
    no_record = f"the scheduler says FAILED{_exit_text(final)}; the script left no end record"
    return _by_scheduler(final, _script_ending(view) or no_record)


def _completed(view: AttemptView) -> Observation | None:
    final = view.final_record
    if final is None or final.state != "COMPLETED":
        return None
    if view.end is None:
        ended = final.ended if final.ended is not None else final.as_of
        if view.now - ended < END_RECORD_S:
            return Observation("UNKNOWN", _source(final), final.as_of, "COMPLETED without an end record so far")
        reason = "COMPLETED without an end record: the script was killed before its end, or is not by hpc-launch"
        return Observation("FAILED", _source(final), final.as_of, reason)
    # An elastic run that lost a node and went on has a failed step and still ended well.
    contradiction = None if view.end.lost_nodes else _contradiction(final)
    if contradiction is None and view.exit_code == 0 and view.signal is None:
        return Observation("COMPLETED", "end_record", view.ended, _warning_text(view))
    if contradiction is None or view.exit_code != 0:
        contradiction = _script_ending(view)
    return Observation("FAILED", _source(final), final.as_of, contradiction)


def _abandoned(view: AttemptView) -> Observation | None:
    live = view.live
    if live is None or not view.abandoned:
        return None
    return Observation("COMPLETING", _source(live), live.as_of, "the node that ran the job's script failed")


def _end_record(view: AttemptView) -> Observation | None:
    if view.end is None:
        return None
    live, answer, ending = view.live, view.answer, _script_ending(view)
    if live is not None and view.ended is not None and live.state == "RUNNING":
        late_s = live.as_of - view.ended
        if late_s > STALE_S:
            reason = f"{ending}, but the scheduler still said RUNNING {late_s:.0f} s later"
            return Observation("COMPLETING", _source(live), live.as_of, reason)
    forgotten = view.record is None and answer.error is None and answer.answered is not None
    if view.disturbed and not forgotten:
        reason = f"{ending}; waiting for the scheduler to say why"
        reason += "" if answer.error is None else f": {answer.error}"
        return Observation("COMPLETING", "end_record", view.ended, reason)
    if view.ended is not None and 0 <= view.now - view.ended < view.settle_s:
        return Observation("COMPLETING", "end_record", view.ended, ending)
    if view.exit_code == 0 and view.signal is None:
        return Observation("COMPLETED", "end_record", view.ended, _warning_text(view))
    if view.files.cancel is not None:
        return Observation("CANCELLED", "end_record", view.ended, view.cancelled_by)
    return Observation("FAILED", "end_record", view.ended, ending)


def _just_started(view: AttemptView) -> Observation | None:
    live, started = view.live, view.started
    # The script's clock has a resolution of one second.
    if live is None or live.state not in WAITING_STATES or started is None or started + 1 < live.as_of:
        return None
    return Observation("RUNNING", "end_record", started)


def _live(view: AttemptView) -> Observation | None:
    live, error = view.live, view.answer.error
    if live is None:
        return None
    reason = None if live.reason in (None, "", "None") else live.reason
    if error is not None:
        reason = f"{reason + '; ' if reason else ''}the scheduler has not answered since: {error}"
    return _by_scheduler(live, reason)


def _unknown(view: AttemptView) -> Observation | None:
    job, answer, record = view.job_id, view.answer, view.record
    if answer.error is not None:
        return Observation("UNKNOWN", reason=f"the scheduler does not answer: {answer.error}")
    if record is not None:
        reason = f"the scheduler says {record.state} and not since when"
        return Observation("UNKNOWN", _source(record), record.as_of, reason)
    if answer.answered is None:
        if view.submitted is not None and view.now - view.submitted < END_RECORD_S:
            return Observation("PENDING", reason="just submitted")
        return Observation("UNKNOWN", reason=f"the scheduler was not asked about job {job}")
    seen = f"; it was last seen {answer.last_seen}" if answer.last_seen else ""
    reason = f"the scheduler does not know job {job}, and it left no end record{seen}"
    return Observation("UNKNOWN", "none", answer.answered, reason)


RULES: tuple[Callable[[AttemptView], Observation | None], ...] = (
    _void,
    lambda view: Observation("SUBMITTING", reason=view.submitting) if view.job_id is None else None,
    _continued,
    _requeued,
    _ended_from_outside,
    _failed,
    _completed,
    _abandoned,
    _end_record,
    _just_started,
    _live,
    _unknown,
)
"""By precedence: the claim first, then the scheduler's final state, then the job's own records."""


def observe(view: AttemptView) -> AttemptStatus:
    """The attempt's state. Every combination of records has an answer, never more certain than its sources."""
    result = next(result for rule in RULES if (result := rule(view)) is not None)
    files, record = view.files, view.final_record or (None if view.superseded or view.requeued else view.record)
    over = record if record is not None and record.ended_for_good else None
    failure_class, verdict = _outcome(view, result.state)
    return AttemptStatus(
        number=files.attempt.number,
        folder=files.attempt.path,
        job_id=view.job_id,
        state=result.state,
        source=result.source,
        age_s=None if result.as_of is None else max(0.0, view.now - result.as_of),
        reason=result.reason,
        exit_code=view.exit_code if view.exit_code is not None else (over.exit_code if over else None),
        nodes=files.nodes or names_or_text(record.nodes if record else None),
        submitted=view.submitted if view.submitted is not None else (record.submitted if record else None),
        started=view.started if view.started is not None else (record.started if record else None),
        ended=view.ended if view.ended is not None else (record.ended if record else None),
        overrides=files.intent.overrides if files.intent else Overrides(),
        failure_class=failure_class,
        verdict=verdict,
        evidence=files.verdict.evidence if files.verdict else (),
    )


def _outcome(view: AttemptView, state: str) -> tuple[str | None, str | None]:
    """Class and verdict: those on record, or those that need no diagnosis."""
    verdict, claim = view.files.verdict, view.files.claim
    if verdict is not None:
        return verdict.failure_class, verdict.action
    if state == "COMPLETED":
        return "success", "NONE"
    if state == "CANCELLED" and (claim is None or claim.void) and revoked_nodes(view) is None:
        return "cancelled_by_user", "STOP"  # it never began
    return None, None


def _by_scheduler(record: JobRecord, reason: str | None) -> Observation:
    return Observation(record.state, _source(record), record.as_of, reason)


def _source(record: JobRecord) -> str:
    return record.source if record.source in STATE_SOURCES else "none"


def _script_ending(view: AttemptView) -> str | None:
    """How the script ended, as text."""
    if view.end is None:
        return None
    how = f"by signal {view.signal}" if view.signal else f"with exit code {view.exit_code}"
    if view.end.phase == "check":
        return f"the script ended {how} in the node check"
    if view.end.phase == "environment":
        return f"the script ended {how} before the training began"
    return f"the training ended {how}"


def _warning_text(view: AttemptView) -> str | None:
    return "it exited after a warning: check its log to see whether it finished" if view.warned else None


def _contradiction(final: JobRecord) -> str | None:
    """Why Slurm's COMPLETED is wrong: it reflects the script's exit code only, and a step may have failed."""
    failed = next((step for step in final.steps if step[1] in FAILED_STEPS), None)
    if failed is not None:
        return f"step {failed[0]} ended {failed[1]} with {failed[2]} although the script ended with 0"
    if final.derived_exit_code not in (None, 0):
        return f"a step failed with {final.derived_exit_code} although the script ended with 0"
    if final.exit_code not in (None, 0):
        return f"the scheduler says exit code {final.exit_code} although the script ended with 0"
    return None


def _exit_text(record: JobRecord) -> str:
    if record.signal:
        return f" by signal {record.signal}"
    return f" with exit code {record.exit_code}" if record.exit_code is not None else ""
