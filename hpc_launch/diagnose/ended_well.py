"""Whether an attempt, or a job by its logs alone, ended well."""

from __future__ import annotations

from hpc_launch.diagnose.candidates import Candidate
from hpc_launch.diagnose.evidence import Evidence, LogScan
from hpc_launch.diagnose.record_candidates import from_scheduler

_SIGNS = frozenset({"slurm-step-aborted", "slurm-stepd-other", "torchrun-summary", "error-word"})
"""Rules whose lines accompany a failure and do not explain it."""

LIVED_ON = 15
"""So many lines after an unknown word of failure show that the program went on."""
SHORT = 60
"""A log of at most so many lines is an excerpt: what it warns of is what it is about."""


def ended_well(evidence: Evidence, solid: list[Candidate]) -> bool:
    """Whether the job's own record and the scheduler both report success, or nothing in the logs contradicts it."""
    end, facts = evidence.end, evidence.scheduler
    if any(candidate.cause == "workdir_missing" for candidate in solid):
        return False
    if end is None and facts is None:
        return not evidence.of_a_run and not solid and _looks_done(evidence)
    if end is not None and end.exit_code != 0:
        return False
    if facts is not None and (facts.state.split()[:1] != ["COMPLETED"] or facts.derived_exit_code):
        return False  # a scheduler that does not respond does not contradict
    if from_scheduler(evidence):
        return False  # an out-of-memory step, say; what only the watcher saw, the job survived
    if any(exit_.code != 0 for exit_ in evidence.node_exits):
        return False
    return evidence.unfinished is None


def _looks_done(evidence: Evidence) -> bool:
    """Whether a log shows that the job reached its end: it says so, or the last step is the last of all."""
    if not any(scan.success_line or scan.complete or scan.report_line for scan in evidence.logs):
        return False
    signs = [max(last_word(scan), _last_sign(scan)) for scan in evidence.logs]
    if any(scan.success_line for scan in evidence.logs):
        return not any(_after(scan, sign) for scan, sign in zip(evidence.logs, signs, strict=True))
    if any(scan.last_total and not scan.complete for scan in evidence.logs):
        return False
    if sum(scan.lines for scan in evidence.logs) <= SHORT and any(_ends_with_a_warning(scan) for scan in evidence.logs):
        return False
    ends = [max(scan.last_progress_line, scan.report_line) for scan in evidence.logs]
    return all(end > sign for end, sign in zip(ends, signs, strict=True) if sign)


def _ends_with_a_warning(scan: LogScan) -> bool:
    """Whether the last line of an excerpt names a cause, if only as a warning."""
    return not scan.steps_seen and any(
        hit.line == scan.lines and hit.faint and hit.rule not in _SIGNS for hit in scan.hits
    )


def last_word(scan: LogScan) -> int:
    """The last line with a word of failure, unless a training step or much else shows that the program continued."""
    went_on = scan.lines - scan.bad_line > LIVED_ON or scan.bad_line < scan.last_progress_line
    return 0 if went_on else scan.bad_line


def _last_sign(scan: LogScan) -> int:
    """The last line that names no cause, but appears only where something fails."""
    return max((hit.line for hit in scan.hits if hit.rule in _SIGNS and not hit.faint and not hit.earlier), default=0)


def _after(scan: LogScan, sign: int) -> bool:
    """Whether a launcher reports a failure after the last sign of success."""
    return sign > scan.success_line > 0 and any(
        hit.line > scan.success_line and hit.rule in _SIGNS and not hit.faint for hit in scan.hits
    )
