"""Tell what a log line is (a step, a loss, a result, a word of failure), and where the last episode of a log begins:
a file may hold several jobs, and restarts of one program."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from hpc_launch.diagnose.evidence import Hit
from hpc_launch.diagnose.log_line import FAINT, line_pattern
from hpc_launch.diagnose.rulebook import Rulebook

_ENDS, _JOB_BEGINS, _RESTARTS, _JOB_ID, _SLURM, _STEP, EPOCH, _BAR, _METRIC, _LOADING, LOSS = map(
    line_pattern, "ends job_begins restarts job_id slurm step epoch bar metric loading loss".split()
)
_DONE, _ECHO, _DEATH, _BAD, _MILD, _REPORT = map(line_pattern, "done echo death bad mild report".split())
_MOST = 200
"""How many beginnings are remembered."""

_OF_ITS_OWN = frozenset({"nccl_timeout", "hang_no_progress"})
"""Classes that show that a restarted program failed, though other processes noticed it; a lost peer does not."""

AFTER_A_JOB = frozenset({"module_not_found", "submit_rejected", "container_error"})
"""Classes of failures before a program starts: after the end of a job such a line belongs to the next one."""


class Beginning(Struct, frozen=True):
    """The first line of an episode."""

    line: int
    new_job: bool
    """Another job begins, whatever follows; otherwise the program restarts."""


class Episodes:
    """Sees the lines that may end or begin an episode."""

    def __init__(self) -> None:
        self._ended = 0
        self._job: str | None = None
        self._job_ended = 0
        self._found: list[Beginning] = []

    @staticmethod
    def concerns(text: str) -> bool:
        """Whether lines of this form may end or begin an episode."""
        return any(pattern.search(text) for pattern in (_ENDS, _JOB_BEGINS, _RESTARTS)) or bool(_JOB_ID.search(text))

    def see(self, text: str, line: int) -> None:
        """Take such a line."""
        if _RESTARTS.search(text):
            self._begin(Beginning(line, new_job=False))
        elif self._ended and _JOB_BEGINS.search(text):
            self._begin(Beginning(line, new_job=True))
        elif _ENDS.search(text):
            self._ended = line
        job = _JOB_ID.search(text) if _SLURM.search(text) else None
        if job is None:
            return
        if self._job is not None and job[1] != self._job and self._job_ended:
            self._begin(Beginning(self._job_ended + 1, new_job=True))
        self._job = job[1]
        self._job_ended = line if "*** JOB " in text else self._job_ended if job[1] == self._job else 0

    def begins(self, hits: Iterable[Hit], rules: Rulebook, last_progress: int) -> int:
        """The first line of the last episode that shows how it went; 0: there is only one."""
        hits = list(hits)
        found = list(self._found)
        if self._job_ended:
            later = [hit.line for hit in hits if hit.line > self._job_ended and not hit.faint
                     and rules.class_of(rules.rules[hit.rule]) in AFTER_A_JOB]  # fmt: skip
            if later:
                found.append(Beginning(min(later), new_job=True))
        for beginning in sorted(found, key=lambda one: one.line, reverse=True):
            failed = any(hit.line > beginning.line and _is_a_failure(hit, rules) for hit in hits)
            if beginning.new_job or failed or last_progress > beginning.line:
                return beginning.line
        return 0

    def _begin(self, beginning: Beginning) -> None:
        self._ended = self._job_ended = 0
        self._found.append(beginning)
        if len(self._found) > _MOST:
            del self._found[: _MOST // 2]


def _is_a_failure(hit: Hit, rules: Rulebook) -> bool:
    """Whether the line shows a failure that is not the consequence of another one."""
    rule = rules.rules[hit.rule]
    return not hit.faint and (rule.order < 50 or rules.class_of(rule) in _OF_ITS_OWN)


class Kind:
    """Bits of the kind of a line, without its numbers: lines of the same form are judged once."""

    PLAIN = 0
    STEP = 1
    LOSS = 2
    DONE = 4
    BAD = 8
    ECHO = 16
    DEATH = 32
    EPISODE = 64
    REPORT = 128


def line_kind(text: str, low: str) -> int:
    """The kind of lines of this form."""
    kind = Kind.PLAIN
    if shown_step(text, low) is not None:
        kind |= Kind.STEP
    if "loss" in low and LOSS.search(text) is not None:
        kind |= Kind.LOSS
    if _DONE.search(text):
        kind |= Kind.DONE
        if _ECHO.search(text):
            kind |= Kind.ECHO
    if _DEATH.search(text):
        kind |= Kind.DEATH
    if _BAD.search(text) and not _MILD.search(text) and not FAINT.search(text):
        kind |= Kind.BAD
    elif _REPORT.search(text) and not kind & Kind.STEP:
        kind |= Kind.REPORT
    if Episodes.concerns(text):
        kind |= Kind.EPISODE
    return kind


def shown_step(text: str, low: str) -> tuple[float, int | None] | None:
    """The step that a training line shows, and the total number of steps."""
    if "/" in text and ("[" in text or "━" in text) and (match := _BAR.search(text)) is not None:
        return None if _LOADING.search(text) else (float(match[1]), int(match[2]))
    if not any(word in low for word in ("step", "iter", "epoch", "tick", "batch", "update", "it ")):
        return None
    match = _STEP.search(text) or EPOCH.search(text)
    if match is None or not _METRIC.search(text):
        return None
    return float(match[1]), int(match[2]) if match[2] else None
