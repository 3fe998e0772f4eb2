"""Find where the last episode of a log begins: a file may hold several jobs, and restarts of one program."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from hpc_launch.diagnose.evidence import Hit
from hpc_launch.diagnose.rulebook import Rulebook

_ENDS = re.compile(
    r"\*\*\* (?:JOB|STEP) .{1,80} CANCELLED|^srun: error: .{1,120}: tasks? [\d,-]+: "
    r"|Job allocation \S+ has been revoked"
    r"|\bChildFailedError\b|exits with return code = -?[1-9]|\bexit(?:ed)? (?:with )?(?:code|status):? -?\d"
    r"|\bjob\b.{0,40}\b(?:failed|ended|finished|completed|cancelled)\b",
    re.IGNORECASE,
)
_JOB_BEGINS = re.compile(
    r"\bjob\b.{0,60}(?<!will )(?<!failed to )(?<!to )\b(?:starts|started|starting|begins|began)\b(?! *(?:to|failed))"
    r"|^\W{0,40}(?:start(?:ing|ed)?|begin(?:ning)?|running|launching) (?:(?:the|a|this|new|slurm) )*job\b"
    r"|^\W{0,20}SLURM_JOB_?ID\W{1,4}\d",
    re.IGNORECASE,
)
_RESTARTS = re.compile(
    r"will restart worker group|\brestart(?:ing|ed)\b(?! (?:the )?(?:slurm|service|daemon)).{0,60}"
    r"\b(?:training|job|run|workers?|attempt|process(?:es)?|from)\b"
    r"|\b(?:attempt|retry|restart) (?:#|no\.? ?)?\d+(?:(?: of |/)\d+)? (?:starts|begins)\b",
    re.IGNORECASE,
)
_JOB_ID = re.compile(r"(?:StepId=|\bJOB |\bSTEP |\bjob[ _]?(?:id)?[ =:#]{1,3})(\d+)", re.IGNORECASE)
_SLURM = re.compile(r"\b(?:slurmstepd|srun|salloc|sbatch)\b|\*\*\* (?:JOB|STEP) ")
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
