"""The state of an attempt from all its sources: a pure decision, as an ordered list of rules.

The first rule that has an answer gives it. None of them guesses: COMPLETED needs an end record with exit code 0 that
the scheduler does not contradict, and an attempt that no source knows is UNKNOWN, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpc_launch.run import hosts
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import CANCELLED
from hpc_launch.run.records.verdict_record import decided_of
from hpc_launch.run.status.attempt_view import WAITING_STATES, AttemptView
from hpc_launch.run.status.run_status import STATE_SOURCES, AttemptStatus
from hpc_launch.schedulers.scheduler import JobRecord

FAILED_STEPS = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL"})

ENDED_WORDS = {
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the job reached its time limit",
    "NODE_FAIL": "a node of the job failed",
    "OUT_OF_MEMORY": "the job used more memory than it was given",
    "PREEMPTED": "the job was preempted by another",
    "BOOT_FAIL": "a node of the job did not start",
    "DEADLINE": "the job could not be done before its deadline",
    "REVOKED": "the job was revoked by its cluster federation",
}
"""The scheduler's words that say more than an exit code can."""


@dataclass(frozen=True)
class Observation:
    """What a rule decided. `as_of` is the time of the source's word, None where it has none."""

    state: str
    source: str = "none"
    as_of: float | None = None
    reason: str | None = None


def _void(case: AttemptView) -> Observation | None:
    reason = case.files.void
    if reason is None:
        return None
    return Observation("CANCELLED" if reason.startswith(CANCELLED) else "VOID", reason=reason)


def _submitting(case: AttemptView) -> Observation | None:
    return Observation("SUBMITTING", reason=case.submitting) if case.job_id is None else None


def _requeued(case: AttemptView) -> Observation | None:
    if not case.requeued:
        return None
    word = case.last_word
    if word is not None and word.state in ENDED_WORDS:
        return _by(word, f"{ENDED_WORDS[word.state]}, and the scheduler requeued it")
    ending = _ending(case)
    return Observation("REQUEUED", reason=f"{f'{ending}; ' if ending else ''}the scheduler requeued job {case.job_id}")


def _ended_by_others(case: AttemptView) -> Observation | None:
    word = case.last_word
    return _by(word, _because(case, word)) if word is not None and word.state in ENDED_WORDS else None


def _failed(case: AttemptView) -> Observation | None:
    word = case.last_word
    if word is None or word.state != "FAILED":
        return None
    if case.exit_code == 0:
        return _by(word, f"the scheduler says FAILED{_code(word)} although the script ended with 0")
    return _by(word, _ending(case) or f"the scheduler says FAILED{_code(word)}; the script left no end record")


def _completed(case: AttemptView) -> Observation | None:
    word = case.last_word
    if word is None or word.state != "COMPLETED":
        return None
    if case.end is None:
        ended = word.ended if word.ended is not None else word.as_of
        if case.now - ended < case.limits.end_record:
            return Observation("UNKNOWN", _source(word), word.as_of, "COMPLETED without an end record so far")
        why = "COMPLETED without an end record: the script was killed before its end, or it is not ours"
        return Observation("FAILED", _source(word), word.as_of, why)
    # An elastic run that outlived a node has a failed step to show for it, and ended well all the same.
    outlived = bool(values.whole(case.end.get("lost_nodes")))
    contradiction = None if outlived else _contradiction(word)
    if contradiction is None and case.exit_code == 0 and case.signal is None:
        return Observation("COMPLETED", "end_record", case.ended, _warned(case))
    if contradiction is None or case.exit_code != 0:
        contradiction = _ending(case)
    return Observation("FAILED", _source(word), word.as_of, contradiction)


def _end_record(case: AttemptView) -> Observation | None:
    if case.end is None:
        return None
    live, answer = case.live, case.answer
    if live is not None and case.ended is not None and live.state == "RUNNING":
        late = live.as_of - case.ended
        if late > case.limits.stale:
            why = f"{_ending(case)}, but the scheduler still said RUNNING {late:.0f} s later"
            return Observation("COMPLETING", _source(live), live.as_of, why)
    gone = case.record is None and answer.error is None and answer.answered is not None
    if case.disturbed and not gone:
        why = f"{_ending(case)}; waiting for the scheduler to say why"
        return Observation(
            "COMPLETING", "end_record", case.ended, why if answer.error is None else f"{why}: {answer.error}"
        )
    if case.ended is not None and not gone and 0 <= case.now - case.ended < case.limits.settle:
        return Observation("COMPLETING", "end_record", case.ended, _ending(case))
    if case.exit_code == 0 and case.signal is None:
        return Observation("COMPLETED", "end_record", case.ended, _warned(case))
    if case.files.cancel is not None:
        return Observation("CANCELLED", "end_record", case.ended, _cancelled(case))
    return Observation("FAILED", "end_record", case.ended, _ending(case))


def _just_started(case: AttemptView) -> Observation | None:
    live = case.live
    started = case.started
    # A shell's clock counts whole seconds.
    if live is None or live.state not in WAITING_STATES or started is None or started + 1 < live.as_of:
        return None
    return Observation("RUNNING", "end_record", started)


def _live(case: AttemptView) -> Observation | None:
    live = case.live
    if live is None:
        return None
    reason = None if live.reason in (None, "", "None") else live.reason
    error = case.answer.error
    if error is not None:
        reason = f"{reason + '; ' if reason else ''}the scheduler has not answered since: {error}"
    return _by(live, reason)


def _unknown(case: AttemptView) -> Observation | None:
    job, answer = case.job_id, case.answer
    if answer.error is not None:
        return Observation("UNKNOWN", reason=f"the scheduler does not answer: {answer.error}")
    record = case.record
    if record is not None:
        return Observation(
            "UNKNOWN", _source(record), record.as_of, f"the scheduler says {record.state} and not since when"
        )
    if answer.answered is None:
        submitted = values.seconds(case.files.job.get("submitted")) if case.files.job else None
        if submitted is not None and case.now - submitted < case.limits.end_record:
            return Observation("PENDING", reason="just submitted")
        return Observation("UNKNOWN", reason=f"the scheduler was not asked about job {job}")
    seen = f"; it was last seen {answer.last_seen}" if answer.last_seen else ""
    why = f"the scheduler does not know job {job}, and it left no end record{seen}"
    return Observation("UNKNOWN", "none", answer.answered, why)


RULES: tuple[Callable[[AttemptView], Observation | None], ...] = (
    _void,
    _submitting,
    _requeued,
    _ended_by_others,
    _failed,
    _completed,
    _end_record,
    _just_started,
    _live,
    _unknown,
)
"""In the order of their word: what `claim` says is law, then the scheduler's last word, then the job's own record."""


def observe(case: AttemptView) -> AttemptStatus:
    """The attempt's state. Total: whatever the files hold, it answers, and never with more than they show."""
    said = next(said for rule in RULES if (said := rule(case)) is not None)
    files, record = case.files, case.last_word or (None if case.requeued else case.record)
    start, end = files.start or {}, case.end or {}
    submitted = values.seconds(files.job.get("submitted")) if files.job else None
    nodes = hosts.names(end.get("nodes") or start.get("nodes")) or hosts.names(record.nodes if record else None)
    overrides = files.intent.get("overrides") if files.intent else None
    decided = decided_of(files.verdict)
    return AttemptStatus(
        number=files.attempt.number,
        folder=files.attempt.path,
        job_id=case.job_id,
        state=said.state,
        source=said.source,
        age_s=None if said.as_of is None else max(0.0, case.now - said.as_of),
        reason=said.reason,
        exit_code=case.exit_code if case.exit_code is not None else _exit_code(record),
        nodes=nodes,
        submitted=submitted if submitted is not None else (record.submitted if record else None),
        started=case.started if case.started is not None else (record.started if record else None),
        ended=case.ended if case.ended is not None else (record.ended if record else None),
        overrides=overrides if isinstance(overrides, dict) else {},
        failure_class=decided.failure_class if decided else "success" if said.state == "COMPLETED" else None,
        verdict=decided.action if decided else "NONE" if said.state == "COMPLETED" else None,
        evidence=decided.evidence if decided else (),
    )


def _by(record: JobRecord, reason: str | None) -> Observation:
    return Observation(record.state, _source(record), record.as_of, reason)


def _source(record: JobRecord) -> str:
    return record.source if record.source in STATE_SOURCES else "none"


def _exit_code(record: JobRecord | None) -> int | None:
    return record.exit_code if record is not None and record.ended_for_good else None


def _because(case: AttemptView, word: JobRecord) -> str:
    if word.state == "CANCELLED" and case.files.cancel is not None:
        return _cancelled(case)
    detail = "" if word.reason in (None, "", "None") else f" ({word.reason})"
    return f"{ENDED_WORDS[word.state]}{detail}"


def _cancelled(case: AttemptView) -> str:
    by = values.text((case.files.cancel or {}).get("by"))
    return f"cancelled by {by}" if by else "cancelled"


def _ending(case: AttemptView) -> str | None:
    """How the script ended, in words."""
    if case.end is None:
        return None
    how = f"by signal {case.signal}" if case.signal else f"with exit code {case.exit_code}"
    phase = values.text(case.end.get("phase"))
    if phase == "environment":
        return f"the script ended {how} before the training began"
    return f"the training ended {how}"


def _warned(case: AttemptView) -> str | None:
    warned = case.end is not None and values.flag(case.end.get("warned"))
    return "it ended after the warning before its end: see its log whether it was done" if warned else None


def _contradiction(word: JobRecord) -> str | None:
    """Why Slurm's COMPLETED is none: it is the exit code of the script alone, and a step may have failed in it."""
    bad = next((step for step in word.steps if step[1] in FAILED_STEPS), None)
    if bad is not None:
        return f"step {bad[0]} ended {bad[1]} with {bad[2]} although the script ended with 0"
    if word.derived_exit_code not in (None, 0):
        return f"a step failed with {word.derived_exit_code} although the script ended with 0"
    if word.exit_code not in (None, 0):
        return f"the scheduler says exit code {word.exit_code} although the script ended with 0"
    return None


def _code(word: JobRecord) -> str:
    if word.signal:
        return f" by signal {word.signal}"
    return f" with exit code {word.exit_code}" if word.exit_code is not None else ""
