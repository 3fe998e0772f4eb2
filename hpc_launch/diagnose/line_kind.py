"""Tell what a log line is (a step, a loss, a result, a word of failure), and where the last episode of a log begins:
a file may hold several jobs, and restarts of one program."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from hpc_launch.diagnose.evidence import Hit
from hpc_launch.diagnose.log_line import FAINT
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


_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?|it|batch|update|num_updates|kimg|tick)s?\b[\"']?\s{0,4}[\[:=#]?\s{0,8}"
    r"[\[(]?\s{0,8}(\d{1,12})(?:\s{0,4}(?:/|of)\s{0,8}(\d{1,12}))?",
    re.IGNORECASE,
)
EPOCH = re.compile(
    r"\bepochs?\b[\"']?\s{0,4}[\[:=#]?\s{0,8}[\[(]?\s{0,8}(\d{1,9}(?:\.\d{1,6})?)(?:\s{0,4}(?:/|of)\s{0,8}(\d{1,9}))?",
    re.IGNORECASE,
)
_BAR = re.compile(r"\b(\d{1,9})/(\d{1,9}) (?:\[\d+:\d\d(?::\d\d)?<|\[[=>.]{10}|━{10})")
_METRIC = re.compile(
    r"\b(?:loss|lr|learning[_ ]rate|ppl|perplexity|acc(?:uracy)?|grad[_ ]?norm|samples/s|tokens?/s|it/s|s/it|sec/\w+|"
    r"elapsed|throughput|tflops|consumed)\b",
    re.IGNORECASE,
)
_LOADING = re.compile(r"(?i)\b(?:loading|download|fetch|map|filter|tokeniz|resolving|extract|shards?|generating|index)")
LOSS = re.compile(
    r"\b(?:lm[_ ])?(?:train[_ ])?loss\b(?: value)?[\"']?\s{0,4}[:=|]?\s{0,4}"
    r"(-?(?:nan|inf(?:inity)?|\d[\d.]{0,20}(?:e[+-]?\d{1,3})?))\b",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"(?i)\btrain(?:ing)? (?:is |has )?(?:been )?(?:complete[d]?|finished|done|ended successfully)\b|\btrain_runtime\b"
    r"|\bcompleted (?:the )?training\b"
    r"|\*\*\*\*\* (?:train|eval|test|predict)\w* metrics|Trainer\.fit` stopped: `max_(?:epochs|steps)="
    r"|successfully (?:completed|finished|trained)"
    r"|(?<!abort before MPI_INIT completed )\b(?:completed|finished|ended|exited) successfully\b"
    r"|\ball (?:tests|jobs|tasks|done) (?:passed|finished|completed|succeeded)"
    r"|\bjob (?:\d\S* )?(?:is |has )?(?:finished|completed|done)\b"
    r"|exit(?:ed)? (?:with )?(?:exit )?(?:code|status):? 0\b"
    r"|exits successfully|(?-i:\bSUCCESS\b)|^\s{0,40}(?:all )?done[.!]{0,3}\s{0,9}$"
    r"|(?<!up )\bfinished (?:training|run|benchmark|in )|W&B process to finish\W{1,5}\(success\)|State: COMPLETED"
    r"|final (?:model|checkpoint|weights) (?:was |is )?saved|\[after training is done\]|\bend (?:of )?training\b"
    r"|^\[Parallel\(n_jobs=.{1,60} finished\s{0,9}$|# Avg bus bandwidth {1,8}: |\bExit_status=0 "
    r"|={4,40} {1,9}End of simulation {1,9}={4,40}|^(?:End of Tests\.|Finalising parallel run)\s{0,9}$"
    r"|^=+ \d+ passed(?:, \d+ (?:skipped|deselected|xfailed|warnings?|subtests passed)){0,4} in \d[\d.]*s\b"
    r"|\bNormal termination\b(?! \(return value [1-9])|(?-i:TERMINATED NORMALLY)"
    r"|\b(\d+) of \1 steps \(100%\) done|\bNothing to be done\b"
    r"|\[NbConvertApp\] Writing \d+ bytes|\[exiting program after \d+ iterations\]"
    r"|reached (?:the )?(?:target|max(?:imum)?) (?:number of )?(?:steps|iterations|epochs)"
)
_ECHO = re.compile(
    r"(?i)^\s{0,40}(?:#|=|-|\*|\s){0,40}"
    r"(?:(?:all )?done[.!]{0,3}\s{0,9}$"
    r"|(?:slurm |the |this )?job (?:\d\S* )?(?:is |has )?(?:finished|completed?|done)\b)"
)
"""Lines that a job script prints at its end, however its program ended."""
_DEATH = re.compile(
    r"^FATAL: {2,}|Killing subprocess|Exited with exit code|ChildFailedError|BAD TERMINATION OF"
    r"|Primary job ?terminated normally, but|non-zero exit (?:status|code)"
    r"|^(?:\[\w+\]: ?)?[A-Za-z_]\w*(?:\.\w+){0,9}(?:Error|Exception)(?::|$)"
)
"""Last lines of a program or launcher that failed."""
_BAD = re.compile(
    r"(?i)\b(?:errors?|fail(?:ed|ure|s|ing)?|abort(?:ed|ing)?|denied|cannot|can't|unable to|invalid|not found|killed|"
    r"fatal|exceeded|refused|illegal|panic|crash(?:ed)?|terminated|unrecognized|unsupported|no such|not available|"
    r"unreachable|corrupt\w*|segfault|timed out|out of (?!\d)|not permitted|unexpected|does not exist|must be)\b"
)
"""General words of failure."""
_MILD = re.compile(
    r"(?i)^-- \w|^(?:[\d.: -]{8,40}: )?[IW](?:\d{4})? |\bwarn|\bdeprecat|\binfo\b|\bdebug\b|"
    r"^\s{0,40}\w+(?:\.\w+){0,9} ?= ?|skip|ignor|retry|fallback|falling|"
    r"missing from|optional|\b0 OK|(?<!error)(?<!fatal): (?:No|0|OK|N/A|None|False)\b|' locally$|cgroup|"
    r"ttyname|tput:|stty:|\bx11\b|already been registered|"
    r"✔|✓|0 (?:errors?|fail)|no errors?|errors?(?:: | {4,40})0\b|"
    r"\berror summary|\bcontinuity errors|^\s{0,40}0 tests |\berror:? *[-+]?[\d.]+(?:e[-+]?\d+)? ?%?\s*$|error rate|"
    r"\berrors?\b[^:=]{0,30}[:=]\s{0,4}[\[(]{0,3}[-+]?\d+\.\d|will result in indexing errors|^\[[DI] \d\d:|"
    r"\bJob terminated\.|orte_base_help_aggregate|"
    r"(?:val|test|train|mean|abs\w*|sq\w*|std)\w*[ _-]error"
)
"""Words that make such a line harmless."""
_REPORT = re.compile(
    r"(?i)\b(?:elapsed|duration|total (?:time|runtime|tokens|steps)|run ?time|wall ?time|throughput|bus ?bw|bandwidth"
    r"|average|avg|mean|median|overall|final|best|accuracy|score|f1|auc|rmse|perplexity|took)\b.{0,60}\d"
    r"|\b(?:saved|written|wrote|stored|exported|uploaded|generated)\b.{0,100}(?: to | in | at | into |: )\S"
    r"|\b(?:job|script|run|program) (?:has )?(?:ended|exited|exits)\b|\bend(?:ed)? (?:time|at|on)\b"
    r"|destroy_process_group\(\) was not called before program exit"
)
"""Lines that report results, as programs print at their end."""


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
