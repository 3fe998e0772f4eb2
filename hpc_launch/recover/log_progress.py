"""Find how far the training got, by its own log lines, and whether it reports that it is done."""

from __future__ import annotations

import re
from bisect import bisect_right

import msgspec

from hpc_launch.recover.episodes import Episodes
from hpc_launch.recover.evidence import Hit, LogScan
from hpc_launch.recover.log_line import FAINT

_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?|it|batch|update|num_updates|kimg|tick)s?\b[\"']?\s{0,4}[\[:=#]?\s{0,8}"
    r"[\[(]?\s{0,8}(\d{1,12})(?:\s{0,4}(?:/|of)\s{0,8}(\d{1,12}))?",
    re.IGNORECASE,
)
_EPOCH = re.compile(
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
_LOSS = re.compile(
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
_NEAR = 4
"""Maximum number of lines between such a line and the script's own last lines."""
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
_LAST_WORDS = 12
"""Maximum number of lines after such a line at the end of a log."""
_NUMBERS = re.compile(r"[\d:.\-]+")
_QUIET_S = 1500.0
"""Seconds after the last step from which a log that only repeats itself shows a hang."""
_MARKS = 50_000
_AFTER = 50
_FORMS = 500


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


class ProgressMeter:
    """Sees every line of a log once."""

    def __init__(self) -> None:
        self.steps = 0
        self._step: float | None = None
        self._line = 0
        self._time: float | None = None
        self._marks: list[int] = []
        self._done: tuple[int, str] = (0, "")
        self._nan_run = self._nan_line = 0
        self._nan_text = ""
        self._bad: tuple[int, str] = (0, "")
        self._death = 0
        self._after: dict[str, _Repeated] = {}
        self._counters: dict[int, _Counter] = {}
        self._reports: dict[str, tuple[int, str]] = {}

    @property
    def line(self) -> int:
        """The line of the last step."""
        return self._line

    @staticmethod
    def kind(text: str, low: str) -> int:
        """The kind of lines of this form."""
        kind = Kind.PLAIN
        if _found(text, low) is not None:
            kind |= Kind.STEP
        if "loss" in low and _LOSS.search(text) is not None:
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

    def see(self, kind: int, text: str, line: int, time: float | None) -> None:
        """Take one line."""
        if kind & Kind.LOSS:
            self._loss(text, line)
        if kind & Kind.STEP and self._is_step(text, line):
            self._line, self._time = line, time
            self._after.clear()
            return
        if kind & Kind.DEATH:
            self._death = line
        if kind & Kind.DONE and not (kind & Kind.ECHO and 0 < self._death >= line - _NEAR):
            self._done = (line, text.strip()[:300])
        if kind & Kind.BAD:
            self._bad = (line, text.strip()[:300])
        if kind & Kind.REPORT and len(self._reports) < _FORMS:
            self._reports.setdefault(_NUMBERS.sub("#", text[:60]), (line, text.strip()[:300]))
        if len(self._after) < _AFTER:
            key = _NUMBERS.sub("#", text[:120])
            before = self._after.get(key)
            self._after[key] = (
                _Repeated(1, line, text, time, time) if before is None else before.again(line, text, time)
            )

    def after(self, hit: Hit, begins: int) -> Hit:
        """The hit, with what follows it in the log. `begins`: the first line of the last episode."""
        later = len(self._marks) - bisect_right(self._marks, hit.line)
        success = self._done[0] > hit.line
        earlier = hit.line < begins
        if not later and not success and not earlier:
            return hit
        return msgspec.structs.replace(hit, later_progress=later, later_success=success, earlier=earlier)

    def into(self, scan: LogScan) -> LogScan:
        """The scan, with how far the training got."""
        idle_s, idle_line, idle_text = self._idle()
        begins = scan.episode_line
        counters = [(total, counter) for total, counter in self._counters.items() if counter.line >= begins]
        open_ = [(total, counter) for total, counter in counters if counter.last < total - counter.from_zero]
        total, step = max(((total, counter.last) for total, counter in open_ or counters), default=(None, self._step))
        report = max(self._reports.values(), default=(0, ""))
        return msgspec.structs.replace(
            scan,
            steps_seen=self.steps if self._line >= begins else 0,
            last_step=int(step) if step is not None else None,
            last_total=total,
            last_progress_line=self._line,
            complete=bool(counters) and not open_,
            report_line=report[0] if report[0] >= max(begins, scan.lines - _LAST_WORDS, 1) else 0,
            report_text=report[1],
            success_line=self._done[0] if self._done[0] >= begins else 0,
            success_text=self._done[1],
            nan_run=self._nan_run,
            nan_line=self._nan_line,
            nan_text=self._nan_text,
            idle_s=idle_s,
            idle_line=idle_line,
            idle_text=idle_text,
            bad_line=self._bad[0] if self._bad[0] >= begins else 0,
            bad_text=self._bad[1],
        )

    def _is_step(self, text: str, line: int) -> bool:
        low = text.lower()
        found = _found(text, low)
        if found is None:
            return False
        self._count(found, line)
        if "epoch" in low and (epoch := _EPOCH.search(text)) is not None and epoch[2]:
            self._count((float(epoch[1]), int(epoch[2])), line)
        if found[0] == self._step:
            return False
        self._step = found[0]
        self.steps += 1
        self._marks.append(line)
        if len(self._marks) > 2 * _MARKS:
            del self._marks[:_MARKS]
        return True

    def _count(self, found: tuple[float, int | None], line: int) -> None:
        """Follow the counter with this total."""
        step, total = found
        if total is None or (total not in self._counters and len(self._counters) >= _AFTER):
            return
        before = self._counters.get(total)
        self._counters[total] = _Counter(step, before.from_zero if before is not None else step == 0, line)

    def _loss(self, text: str, line: int) -> None:
        match = _LOSS.search(text)
        if match is None or "skip" in text.lower():
            return  # fp16 repeats a step with a smaller scale: not a failure
        if match[1].lower().lstrip("-").startswith(("nan", "inf")):
            self._nan_run += 1
            if self._nan_run == 1:
                self._nan_line, self._nan_text = line, text.strip()[:300]
        else:
            self._nan_run = 0

    def _idle(self) -> tuple[float, int, str]:
        """Lines that only repeat long after the last step: a heartbeat, not the training."""
        if not self._after or len(self._after) > 12:
            return 0.0, 0, ""
        repeated = [entry for entry in self._after.values() if entry.count > 1]
        if not repeated or not self._line:
            return 0.0, 0, ""
        last = max(repeated, key=lambda entry: entry.line)
        begun = self._time if self._time is not None else last.first
        if begun is None or last.time is None or last.time - begun < _QUIET_S:
            return 0.0, 0, ""
        return last.time - begun, last.line, last.text.strip()[:300]


class _Counter(msgspec.Struct, frozen=True):
    """The last step seen of a counter with a total."""

    last: float
    from_zero: bool
    line: int


class _Repeated(msgspec.Struct, frozen=True):
    """A line that repeats, apart from its numbers."""

    count: int
    line: int
    text: str
    first: float | None
    time: float | None

    def again(self, line: int, text: str, time: float | None) -> _Repeated:
        return _Repeated(self.count + 1, line, text, self.first if self.first is not None else time, time)


def _found(text: str, low: str) -> tuple[float, int | None] | None:
    """The step that a training line shows, and the total number of steps."""
    if "/" in text and ("[" in text or "━" in text) and (match := _BAR.search(text)) is not None:
        return None if _LOADING.search(text) else (float(match[1]), int(match[2]))
    if not any(word in low for word in ("step", "iter", "epoch", "tick", "batch", "update", "it ")):
        return None
    match = _STEP.search(text) or _EPOCH.search(text)
    if match is None or not _METRIC.search(text):
        return None
    return float(match[1]), int(match[2]) if match[2] else None
