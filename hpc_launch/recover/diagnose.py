"""From evidence to a diagnosis: the class of the root cause, who failed first, and what to do by default."""

from __future__ import annotations

import math

import msgspec

from hpc_launch.recover import log_candidates, record_candidates
from hpc_launch.recover.candidates import Candidate, choose
from hpc_launch.recover.collectives import compare
from hpc_launch.recover.describe import nothing, refused, success, worded
from hpc_launch.recover.diagnosis import Diagnosis, Quote
from hpc_launch.recover.evidence import Evidence, LogScan
from hpc_launch.recover.rulebook import Rulebook

_SIGNS = frozenset({"slurm-step-aborted", "slurm-stepd-other", "torchrun-summary", "error-word"})
"""Rules of lines that stand beside a failure and do not explain it."""

TINY = 4
"""A log of fewer lines that says neither this nor that is no success: it may just have stopped."""
LIVED_ON = 15
"""Lines after a word of failure that no rule knows, by which the program has shown that it went on."""
SHORT = 60
"""Lines of a log that somebody cut out and quoted: what it warns of is what it is about."""


def diagnose(evidence: Evidence, rules: Rulebook) -> Diagnosis:
    """Weigh everything and name the root cause.

    Never raises: evidence that says nothing gives the class `unknown`.
    """
    if evidence.void is not None:
        return refused(evidence.void, rules)
    solid, faint = log_candidates.from_logs(evidence, rules)
    solid += log_candidates.from_workers(evidence, rules)
    solid += record_candidates.from_scheduler(evidence.scheduler)
    solid += record_candidates.from_notes(evidence.notes)
    if evidence.cancelled_by is not None:
        words = f"cancelled by {evidence.cancelled_by} with hpc-launch"
        cancel = Candidate("cancelled_by_user", "cancelled", 5, (Quote("cancel.json", 0, words),), certain=True,
                         time=evidence.cancelled_at)  # fmt: skip
        return worded(cancel, evidence, rules, [cancel, *solid], faint)
    if _went_well(evidence, solid):
        return success(evidence, rules, solid, faint)
    if (left := _left_when_warned(evidence)) is not None:
        return worded(left, evidence, rules, [left, *solid], faint)
    root = choose(solid)
    if root is None or (root.order >= 60 and evidence.alive):
        root = _without_a_line(evidence, faint) or root
    if root is None:
        return nothing(evidence, rules, faint)
    root = _silent_peer(root, evidence)
    root = _compared(_placed(_listed(_killed(root, evidence), evidence), evidence), evidence)
    return worded(root, evidence, rules, solid, faint)


def _went_well(evidence: Evidence, solid: list[Candidate]) -> bool:
    """Whether the job's own record and the scheduler both say so, or a log has nothing to say against it."""
    end, facts = evidence.end, evidence.scheduler
    if any(candidate.cause == "workdir_missing" for candidate in solid):
        return False
    if end is None and facts is None:
        return not evidence.of_a_run and not solid and _looks_done(evidence)
    if end is not None and end.exit_code != 0:
        return False
    if facts is not None and (facts.state.split()[:1] != ["COMPLETED"] or facts.derived_exit_code):
        return False  # one that says nothing, as it is away, does not contradict
    if any(candidate.certain for candidate in solid):
        return False
    if any(exit_.code != 0 for exit_ in evidence.node_exits):
        return False
    return evidence.unfinished is None


def _looks_done(evidence: Evidence) -> bool:
    lines = sum(scan.lines for scan in evidence.logs)
    if not lines:
        return False
    if lines < TINY and not any(scan.success_line or scan.steps_seen for scan in evidence.logs):
        return False
    signs = [max(_last_word(scan), _last_sign(scan)) for scan in evidence.logs]
    if any(scan.success_line for scan in evidence.logs):
        return not any(_after(scan, sign) for scan, sign in zip(evidence.logs, signs, strict=True))
    if lines <= SHORT and any(_ends_with_a_warning(scan) for scan in evidence.logs):
        return False
    if any(signs):
        return all(scan.last_progress_line > sign for scan, sign in zip(evidence.logs, signs, strict=True) if sign)
    return not any(
        scan.last_total and scan.last_step is not None and scan.steps_seen >= log_candidates.WENT_ON
        and scan.last_step < 0.97 * scan.last_total
        for scan in evidence.logs
    )  # fmt: skip


def _ends_with_a_warning(scan: LogScan) -> bool:
    """Whether the last line of a quote tells of a cause, if only as a warning."""
    return not scan.steps_seen and any(
        hit.line == scan.lines and hit.faint and hit.rule not in _SIGNS for hit in scan.hits
    )


def _last_word(scan: LogScan) -> int:
    """The last line with a word of failure, unless so much was written after it that the program lived on."""
    return scan.bad_line if scan.lines - scan.bad_line <= LIVED_ON else 0


def _last_sign(scan: LogScan) -> int:
    """The last line of a kind that is none of a cause, and yet only seen where something fails."""
    return max((hit.line for hit in scan.hits if hit.rule in _SIGNS and not hit.faint), default=0)


def _after(scan: LogScan, sign: int) -> bool:
    """Whether a launcher says after the last word of success that it failed."""
    return sign > scan.success_line > 0 and any(
        hit.line > scan.success_line and hit.rule in _SIGNS and not hit.faint for hit in scan.hits
    )


def _left_when_warned(evidence: Evidence) -> Candidate | None:
    """A training that was warned, and ended with 0 before its last step: whatever was said of its step meanwhile."""
    end = evidence.end
    if end is None or end.exit_code != 0 or not end.warned or evidence.unfinished is None:
        return None
    kind = "preempted" if end.preempted else "time_limit"
    return Candidate(kind, kind, 30, (Quote("end.json", 0, evidence.unfinished),), certain=True)


def _without_a_line(evidence: Evidence, faint: list[Candidate]) -> Candidate | None:
    """What can be told although no line names a cause."""
    end, facts = evidence.end, evidence.scheduler
    if end is not None and evidence.unfinished is not None:
        quotes = (Quote("end.json", 0, evidence.unfinished),)
        return Candidate("unknown", "unknown", 70, quotes, certain=True)
    if facts is not None and facts.derived_exit_code and facts.state.startswith("COMPLETED"):
        words = f"state {facts.state}, yet a step ended with {facts.derived_exit_code}"
        return Candidate("unknown", "completed_but_step_failed", 68, (Quote(facts.source, 0, words),), certain=True)
    if end is not None and end.exit_code == 93:
        return Candidate("user_code_error", "requested_no_restart", 10, (Quote("end.json", 0, "exit code 93"),))
    if end is not None and end.lost_nodes:
        return Candidate("node_failure", "node_failure", 50, (Quote("end.json", 0, f"{end.lost_nodes} nodes lost"),))
    failed = [exit_ for exit_ in evidence.node_exits if exit_.code not in {0, 143, 271}]
    if failed:
        exit_ = failed[0]
        quote = Quote(exit_.file, 0, f"the launcher on {exit_.node} ended with {exit_.code}")
        return Candidate("user_code_error", "task_exit_nonzero", 66, (quote,), node=exit_.node, time=exit_.time)
    lines = sum(scan.lines for scan in evidence.logs)
    if faint and not evidence.of_a_run and lines <= SHORT and not any(scan.success_line for scan in evidence.logs):
        return choose(faint)
    return _words_of_failure(evidence)


def _words_of_failure(evidence: Evidence) -> Candidate | None:
    """A log that speaks of a failure in words that no rule knows.

    In a long one that is most often the program's own; in the few lines that somebody quotes a tool refuses something.
    """
    scan = max(evidence.logs, key=lambda scan: scan.bad_line, default=None)
    if evidence.of_a_run or scan is None or not scan.bad_line:
        return None
    quotes = (Quote(scan.name, scan.bad_line, scan.bad_text),)
    quoted = scan.lines <= SHORT and not scan.steps_seen
    kind = "config_error" if quoted else "user_code_error"
    return Candidate(kind, "task_exit_nonzero", 75, quotes, source=scan.source, line=scan.bad_line)


def _killed(root: Candidate, evidence: Evidence) -> Candidate:
    """A SIGKILL from nowhere is mostly the kernel's, for memory; where Slurm or the watcher counted none, it is not."""
    if root.cause not in {"task_died_by_signal", "torchrun_worker_signal"} or root.failure_class != "host_oom":
        return root
    counted = any(
        (note.kind == "death" and note.signal == 9) or (note.kind == "spared" and note.node == root.node)
        for note in evidence.notes
    )
    if not counted and (evidence.scheduler is None or not evidence.scheduler.steps):
        return root
    return msgspec.structs.replace(
        root,
        failure_class="segfault_or_abort",
        verdict="RETRY",
        advice="try again; something outside the training killed a process, and no lack of memory was recorded",
    )


def _listed(root: Candidate, evidence: Evidence) -> Candidate:
    """torchrun's list of exit codes is in no order of time: where it is all there is, its times tell who was first."""
    workers = log_candidates.workers_of(evidence) if root.rule == "torchrun-exit" and root.order >= 60 else []
    if not workers:
        return root
    first = workers[0]
    return msgspec.structs.replace(root, node=first.node, rank=first.rank, time=first.time)


def _silent_peer(root: Candidate, evidence: Evidence) -> Candidate:
    """Of ranks that lost a peer, where the watchers saw one end before that had said nothing: that one is the root."""
    ends = [note for note in evidence.notes if note.kind in {"spared", "death"} and note.time and note.rank is not None]
    if root.cause != "gloo_peer_lost" or not ends:
        return root
    first = min(ends, key=lambda note: note.time or math.inf)
    if first.rank == root.rank or any(scan.rank == first.rank and scan.hits for scan in evidence.logs):
        return root
    return Candidate(
        "segfault_or_abort", "task_died_by_signal", 48, (Quote(first.file, 0, f"{first.text}, before the others"),),
        node=first.node, rank=first.rank, time=first.time, verdict="RETRY",
        advice="try again; a process ended without a word, and no lack of memory was recorded",
    )  # fmt: skip


def _placed(root: Candidate, evidence: Evidence) -> Candidate:
    """Slurm's word of a kill for memory stands in the log of any rank; the watcher saw which one died of it."""
    notes = [note for note in evidence.notes if note.kind == "oom_kill" and note.rank is not None]
    if root.cause != "host_oom_kill" or not notes:
        return root
    first = min(notes, key=lambda note: math.inf if note.time is None else note.time)
    return msgspec.structs.replace(root, node=first.node, rank=first.rank, time=first.time)


def _compared(root: Candidate, evidence: Evidence) -> Candidate:
    """A timeout of a collective: who is missing, and whether the ranks were at the same one at all."""
    if root.failure_class != "nccl_timeout":
        return root
    found = compare(hit for scan in evidence.logs for hit in scan.hits if hit.rule == "nccl-watchdog")
    if found.behind is not None:
        root = msgspec.structs.replace(root, rank=found.behind, node=None)
    if not found.out_of_step:
        return root
    return msgspec.structs.replace(
        root,
        verdict="STOP",
        advice="the ranks were at different collectives: look for a branch in the program that differs by rank",
    )
