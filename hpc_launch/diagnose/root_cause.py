"""Whether an attempt ended well; if not, choose the root cause among the candidates, and correct its place."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from hpc_launch.diagnose.diagnosis import Candidate, Quote, from_scheduler
from hpc_launch.diagnose.evidence import Evidence, Hit, LogScan
from hpc_launch.job.units import counted

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
    # An out-of-memory step, say; what only the watcher saw, the job survived.
    failed = from_scheduler(evidence) or any(exit_.code != 0 for exit_ in evidence.node_exits)
    return not failed and evidence.unfinished is None


def _looks_done(evidence: Evidence) -> bool:
    """Whether a log shows that the job reached its end: it says so, or the last step is the last of all."""
    if not any(scan.success_line or scan.complete or scan.report_line for scan in evidence.logs):
        return False
    named = ((hit for hit in scan.hits if hit.rule in _SIGNS and not hit.faint) for scan in evidence.logs)
    last = [max((hit.line for hit in hits if not hit.earlier), default=0) for hits in named]
    signs = [max(last_word(scan), line) for scan, line in zip(evidence.logs, last, strict=True)]
    if any(scan.success_line for scan in evidence.logs):
        return not any(_after(scan, sign) for scan, sign in zip(evidence.logs, signs, strict=True))
    if any(scan.last_total and not scan.complete for scan in evidence.logs):
        return False
    ends = [max(scan.last_progress_line, scan.report_line) for scan in evidence.logs]
    return all(end > sign for end, sign in zip(ends, signs, strict=True) if sign)


def last_word(scan: LogScan) -> int:
    """The last line with a word of failure, unless a training step or much else shows that the program continued."""
    went_on = scan.lines - scan.bad_line > LIVED_ON or scan.bad_line < scan.last_progress_line
    return 0 if went_on else scan.bad_line


def _after(scan: LogScan, sign: int) -> bool:
    """Whether a launcher reports a failure after the last sign of success."""
    return sign > scan.success_line > 0 and any(
        hit.line > scan.success_line and hit.rule in _SIGNS and not hit.faint for hit in scan.hits
    )


_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w+)(?:, NumelIn=(\d+))?(?:, NumelOut=(\d+))?")
_UNFINISHED = (
    "look at the end of its logs; if it is finished, as after early stopping, let it create the file named by "
    "HPC_LAUNCH_DONE_FILE, and check that `progress.step` matches only training steps"
)
_MOST_RANKS = 100_000


def choose(candidates: Sequence[Candidate]) -> Candidate | None:
    """The root: the band nearest to it, and in that band the first in time; None where there is no candidate.

    Within one log, the order of the lines decides; between logs, their times. A line without a time was written by a
    program while it ran, and comes before the messages of those that saw it end.
    """
    if not candidates:
        return None
    band = min(candidate.band for candidate in candidates)
    near = [candidate for candidate in candidates if candidate.band == band]
    if any(candidate.failure_class == "node_failure" for candidate in near):  # why Slurm requeued the job
        near = [candidate for candidate in near if candidate.cause != "requeued_by_scheduler"]
    if any(candidate.cause == "prolog_failed" and candidate.by_slurm for candidate in near):
        # slurmd cancels a job with --no-requeue whose Prolog fails, also one that runs elsewhere (seen with 26.05).
        near = [candidate for candidate in near if candidate.cause != "cancelled"]
    if len({candidate.source for candidate in near}) == 1:
        return _earliest(near)
    return min(
        near,
        key=lambda candidate: (
            -math.inf if candidate.time is None else candidate.time,
            candidate.source,
            candidate.line,
            candidate.order,
        ),
    )


def _earliest(candidates: Sequence[Candidate]) -> Candidate:
    """The first in a log: by line, but lines with their own time by that, because programs buffer what they print."""
    first = min(candidates, key=lambda candidate: (candidate.line, candidate.order))
    if not first.timed or first.time is None:
        return first
    return min(
        (candidate for candidate in candidates if candidate.timed and candidate.time is not None),
        key=lambda candidate: (candidate.time or 0.0, candidate.line, candidate.order),
    )


def without_a_line(evidence: Evidence, faint: Sequence[Candidate]) -> Candidate | None:
    """The root cause where no line names one."""
    end, facts = evidence.end, evidence.scheduler
    if end is not None and evidence.unfinished is not None:
        quotes = (Quote("end.json", 0, evidence.unfinished),)
        return Candidate("unknown", "unknown", 70, quotes, certain=True, advice=_UNFINISHED)
    if facts is not None and facts.derived_exit_code and facts.state.startswith("COMPLETED"):
        words = f"state {facts.state}, yet a step ended with {facts.derived_exit_code}"
        return Candidate("unknown", "completed_but_step_failed", 68, (Quote(facts.source, 0, words),), certain=True)
    if end is not None and end.exit_code == 93:
        return Candidate("user_code_error", "requested_no_restart", 10, (Quote("end.json", 0, "exit code 93"),))
    if end is not None and end.lost_nodes:
        lost = f"{counted(end.lost_nodes, 'node')} lost"
        return Candidate("node_failure", "node_failure", 50, (Quote("end.json", 0, lost),))
    failed = [exit_ for exit_ in evidence.node_exits if exit_.code not in {0, 143, 271}]
    if failed:
        exit_ = min(failed, key=lambda one: math.inf if one.time is None else one.time)
        quotes = (Quote(exit_.file, 0, f"it ended with {exit_.code} on {exit_.node}"),)
        return Candidate("user_code_error", "task_exit_nonzero", 66, quotes, exit_.node, exit_.rank, exit_.time)
    lines = sum(scan.lines for scan in evidence.logs)
    warned = choose(faint) if not evidence.of_a_run and lines <= SHORT else None
    return None if warned is None or any(_moved_on(scan, warned) for scan in evidence.logs) else warned


def _moved_on(scan: LogScan, warned: Candidate) -> bool:
    """Whether a log continued after a warning: it trained, ended well, or reports a failure of its own."""
    return bool(scan.success_line or scan.steps_seen) or (scan.source == warned.source and scan.bad_line > warned.line)


def compared(root: Candidate, evidence: Evidence) -> Candidate:
    """For a timeout of a collective: the missing rank, and whether all ranks were at the same collective."""
    if root.failure_class != "nccl_timeout":
        return root
    hits = [hit for scan in evidence.logs for hit in scan.hits if hit.rule == "nccl-watchdog" and not hit.earlier]
    out_of_step, behind = _collectives(hits)
    named = [hit for scan in evidence.logs for hit in scan.hits if hit.rule == "rank-silent" and not hit.earlier]
    if behind is None and named and named[0].rank is not None:
        behind = named[0].rank
    if behind is not None and behind != root.rank:
        root = replace(root, rank=behind, node=None)
    if not out_of_step:
        return root
    advice = "the ranks were at different collectives: look for a branch in the program that differs by rank"
    return replace(root, verdict="STOP", advice=advice)


def _collectives(hits: Iterable[Hit]) -> tuple[bool, int | None]:
    """Whether two ranks report different operations or sizes for one sequence number, and the rank that is behind."""
    works: dict[int, set[tuple[str, str | None]]] = {}
    last: dict[int, int] = {}
    for hit in hits:
        match = _WORK.search(hit.text)
        if match is None or hit.rank is None:
            continue
        number = int(match[1])
        # The in and out sizes of gathers and broadcasts differ by rank in some groups; operations never do.
        size = match[3] if match[2] in {"ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"} else None
        works.setdefault(number, set()).add((match[2], size))
        last.setdefault(hit.rank, number)
    out_of_step = any(len(kinds) > 1 for kinds in works.values())
    return out_of_step, _behind(last)


def _behind(last: dict[int, int]) -> int | None:
    """The only rank that reported nothing; else the only rank with the lowest sequence number."""
    if len(last) < 3 or max(last) > _MOST_RANKS:
        return None
    missing = [rank for rank in range(max(last)) if rank not in last]
    if len(missing) == 1:
        return missing[0]
    lowest = min(last.values())
    late = [rank for rank, number in last.items() if number == lowest]
    return late[0] if len(late) == 1 and not missing else None
