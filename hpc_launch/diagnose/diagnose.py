"""From evidence to a diagnosis: one ordered table of rules. The first rule that names a root cause decides.

Each rule is a pure function of the evidence. What has side effects (asking Slurm, reading logs) was done before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hpc_launch.diagnose import evidence_order
from hpc_launch.diagnose.build_diagnosis import DiagnosisInput, build
from hpc_launch.diagnose.diagnosis import (
    NEVER_SUBMITTED,
    NODE_CHECK,
    NODE_LOST,
    NODE_STATES,
    NODE_UNFIT,
    SYMPTOM,
    TOO_FEW,
    Candidate,
    Confidence,
    Diagnosis,
    Quote,
)
from hpc_launch.diagnose.evidence import HEARTBEAT, OWN_FAULTS, Evidence, LogScan
from hpc_launch.diagnose.log_line import line_pattern
from hpc_launch.diagnose.root_cause import ended_well, last_word
from hpc_launch.diagnose.rulebook import Rulebook

_TOO_FEW_NODES = line_pattern("too_few_nodes")
"""Slurm's messages for a job for which the partition has too few nodes (slurm_errno.c, job_reason_codes)."""


def _too_few_nodes(subject: DiagnosisInput) -> Candidate | None:
    driver, void = subject.evidence.driver, subject.evidence.void
    waits = driver.never_starts
    text = (waits.job.reason if waits is not None else void) or ""
    if not driver.excluded or not _TOO_FEW_NODES.search(text):
        return None
    kind = waits.failure_class if waits is not None else "submit_rejected"
    quote = Quote(waits.job.source, 0, text) if waits is not None else _claim(text)
    return _certain(kind, TOO_FEW, 10, quote)


def _without_a_job(subject: DiagnosisInput) -> Candidate | None:
    """The attempt's claim says why it never had a job, or has none any more."""
    void = subject.evidence.void or ""
    if void.startswith("cancelled"):
        return _certain("cancelled_by_user", "", 5, _claim(void))
    if void.startswith("vanished"):
        advice = "resubmit the run, unless somebody removed the job on purpose"
        return _certain("unknown", "job_vanished", 10, _claim(void), advice=advice)
    if not void.startswith("never submitted"):
        return None
    cause = void.removeprefix("never submitted").lstrip(": ")
    killed = "submit it again: the process that submitted it was killed before Slurm had the job"
    advice = f"submit it again once the scheduler answers: {cause}" if cause else killed
    return _certain("unknown", NEVER_SUBMITTED, 10, _claim(void), advice=advice)


def _submission_refused(subject: DiagnosisInput) -> Candidate | None:
    """The scheduler refused the job: its own words are the evidence. A person saw them, so nothing is retried."""
    if subject.evidence.void is None:
        return None
    lines = [line for line in subject.evidence.void.splitlines() if line.strip()] or ["it was never submitted"]
    known = (
        (line, rule)
        for line in lines
        for rule, _ in subject.rules.matches(line)
        if subject.rules.class_of(rule) == "submit_rejected"
    )
    line, rule = next(known, (lines[0], None))
    advice = rule.advice if rule is not None else ""
    advice = f"{advice or subject.rules.classes['submit_rejected'].advice}: {line[:600]}"
    quotes = (_claim(line[:600]),)
    cause = rule.cause if rule is not None else ""
    confidence: Confidence = "high" if rule is not None else "medium"
    return Candidate("submit_rejected", cause, 10, quotes, verdict="STOP", advice=advice, confidence=confidence)


def _never_starts(subject: DiagnosisInput) -> Candidate | None:
    waits = subject.evidence.driver.never_starts
    if waits is None:
        return None
    launch = waits.failure_class == "node_failure"
    cause = "pending_held_after_launch_failure" if launch else "pending_never"
    quote = Quote(waits.job.source, 0, f"{waits.job.state} ({waits.job.reason})")
    return _certain(waits.failure_class, cause, 10, quote, advice=waits.meaning)


def _forgotten(subject: DiagnosisInput) -> Candidate | None:
    """Slurm no longer knows the job, which left no end record, and nothing in its folder changes: its node failed.

    Without accounting the controller forgets a job after MinJobAge. If its node comes back, Slurm ends the processes of
    a job that it does not know (validate_jobs_on_node, src/slurmctld/job_mgr.c).
    """
    driver = subject.evidence.driver
    if driver.forgotten is None:
        return None
    quotes = (Quote("scheduler", 0, f"{driver.forgotten}; nothing was written for {driver.silent_s:.0f} s"),)
    return Candidate("node_failure", "node_failure", 60, quotes, verdict="RETRY")


def _node_check(subject: DiagnosisInput) -> Candidate | None:
    """Nodes that failed the check before the training, or fell silent: build_diagnosis names all of them."""
    faults = subject.evidence.node_faults
    if not faults:
        return None
    kind = "gpu_hardware" if all(fault.check.startswith("gpu") for fault in faults) else "node_failure"
    own = {fault.node for fault in faults if fault.check.startswith(OWN_FAULTS)}
    cause = NODE_CHECK if own.issuperset(fault.node for fault in faults) else NODE_UNFIT
    if all(fault.check == HEARTBEAT for fault in faults):
        cause = NODE_LOST
    return Candidate(kind, cause, 10, node=faults[0].node, blames=faults[0].node, certain=True)


def _ending(subject: DiagnosisInput) -> Candidate | None:
    """Inside the job only the scheduler can tell the time limit and a preemption from a cancellation."""
    job = subject.evidence.driver.ending
    if job is not None and job.reason == "TimeLimit":
        return _certain("time_limit", "time_limit", 12, Quote(job.source, 0, f"{job.state} {job.reason}"))
    if job is not None and subject.evidence.driver.preempted:
        return _certain("preempted", "preempted", 12, Quote("sacct", 0, f"{job.job_id} PREEMPTED"))
    return None


def _cancelled(subject: DiagnosisInput) -> Candidate | None:
    evidence = subject.evidence
    if evidence.cancelled_by is None:
        return None
    quote = Quote("cancel.json", 0, f"cancelled by {evidence.cancelled_by} with hpc-launch")
    return Candidate("cancelled_by_user", "cancelled", 5, (quote,), certain=True, time=evidence.cancelled_at)


def _ended_after_warning(subject: DiagnosisInput) -> Candidate | None:
    """A training that was warned and ended with 0 continues, unless it is done or left nothing to continue from."""
    end, evidence = subject.evidence.end, subject.evidence
    if end is None or end.exit_code != 0 or not end.warned:
        return None
    if evidence.unfinished is not None or evidence.driver.went_further:
        kind = "preempted" if end.preempted else "time_limit"
        text = evidence.unfinished or "ended with 0 after the warning before its end"
        return _certain(kind, kind, 30, Quote("end.json", 0, text))
    if evidence.driver.went_further is False:
        return _success(subject)
    return None


def _role(subject: DiagnosisInput) -> Candidate | None:
    """A role that ended too early, or was never ready, where its own log has no cause."""
    fault = subject.evidence.role
    if fault is None:
        return None
    root = _root_cause(subject)
    if root is not None and (root.order < SYMPTOM or (fault.ended and root.failure_class != "unknown")):
        return root
    kind, cause = ("user_code_error", "role_ended") if fault.ended else ("hang_no_progress", "role_not_ready")
    quote, advice = Quote("roles.json", 0, f"role {fault.name}: {fault.why}"), _ROLE_ADVICE[cause]
    return Candidate(kind, cause, 50, (quote,), fault.node, verdict="STOP", advice=advice, certain=True)


_ROLE_ADVICE = {
    "role_ended": "find out why the role ends before those that need it, or set `ends: job` or `restart`",
    "role_not_ready": "look at the role's own log; if it only needs longer, raise `ready: {within: …}`",
}


def _root_cause(subject: DiagnosisInput) -> Candidate | None:
    return evidence_order.find(subject.evidence, subject.solid, subject.faint)


def _unknown(subject: DiagnosisInput) -> Candidate:
    """It failed, or just stopped, and nothing says why."""
    evidence = subject.evidence
    quotes = [
        Quote(scan.name, scan.bad_line, scan.bad_text)
        if last_word(scan)
        else Quote(scan.name, scan.lines, scan.last_line)
        for scan in evidence.logs
        if scan.last_line.strip() and scan.last_line.isprintable()
    ]
    if evidence.alive:
        return Candidate("unknown", "unknown", 90, tuple(quotes[-2:]), advice="it still runs; no failure so far")
    recorded = evidence.of_a_run or evidence.end is not None or evidence.scheduler is not None
    if recorded or subject.solid or not quotes or any(last_word(scan) for scan in evidence.logs):
        return Candidate("unknown", "unknown", 90, tuple(quotes[-2:]))
    return Candidate("unknown", "breaks_off", 90, tuple(quotes[-2:]), verdict="NONE", advice=_breaks_off(evidence.logs))


def _breaks_off(logs: Iterable[LogScan]) -> str:
    """Where logs without an end and without a failure break off, and how to find out how the job ended."""
    advice = "the log shows neither a failure nor the end of the job; `sacct -j JOBID` shows its state"
    furthest = max(
        (scan for scan in logs if scan.last_step is not None), key=lambda scan: scan.steps_seen, default=None
    )
    if furthest is None:
        return advice
    total = f" of {furthest.last_total}" if furthest.last_total else ""
    return f"the log stops at step {furthest.last_step}{total}; {advice}"


Rule = Callable[[DiagnosisInput], Candidate | None]

RECORD_RULES: tuple[Rule, ...] = (
    _too_few_nodes,
    _without_a_job,
    _submission_refused,
    _never_starts,
    _forgotten,
    _node_check,
    _ending,
)
"""Rules that need no log: a job that is about to be killed has no time to read one."""

RULES: tuple[Rule, ...] = (
    *RECORD_RULES,
    _cancelled,
    _ended_after_warning,
    _role,
    lambda subject: _success(subject) if ended_well(subject.evidence, subject.solid) else None,
    _root_cause,
    _unknown,
)
"""All rules, in order."""


def diagnose(evidence: Evidence, rules: Rulebook) -> Diagnosis:
    """Weigh all evidence and name the root cause. Never raises: without any clue the class is `unknown`."""
    subject = DiagnosisInput(evidence, rules)
    return build(_first(RULES, subject) or _unknown(subject), subject)


def diagnose_records(evidence: Evidence, rules: Rulebook) -> Diagnosis | None:
    """The diagnosis where the records alone are enough for one; None where the logs have to be read."""
    subject = DiagnosisInput(evidence, rules)
    root = _first(RECORD_RULES, subject)
    return build(root, subject) if root is not None else None


def may_be_node_failure(evidence: Evidence, rules: Rulebook) -> bool:
    """Whether the states of the nodes may show which one failed, so that the scheduler should be asked for them."""
    if len(evidence.nodes) < 2:
        return False
    slurm, end = evidence.scheduler, evidence.end
    state = slurm.state.partition(" ")[0] if slurm is not None else ""
    lost = state in NODE_STATES or (end is not None and end.lost_nodes > 0)
    hits = (hit.rule for scan in evidence.logs for hit in scan.hits)
    return lost or any(rules.class_of(rules.rules[rule]) == "node_failure" for rule in hits)


def _first(table: Iterable[Rule], subject: DiagnosisInput) -> Candidate | None:
    return next((root for rule in table if (root := rule(subject)) is not None), None)


def _certain(kind: str, cause: str, order: int, quote: Quote, *, advice: str = "") -> Candidate:
    return Candidate(kind, cause, order, (quote,), certain=True, advice=advice)


def _success(subject: DiagnosisInput) -> Candidate:
    evidence = subject.evidence
    quotes = [Quote(scan.name, scan.success_line, scan.success_text) for scan in evidence.logs if scan.success_line]
    warned = evidence.driver.went_further is not None
    sure = warned or (evidence.end is not None and evidence.scheduler is not None)
    confidence: Confidence = "high" if sure else "medium" if quotes else "low"
    return Candidate("success", "", 90, tuple(quotes[:2]), confidence=confidence)


def _claim(text: str) -> Quote:
    return Quote("claim", 0, text)
