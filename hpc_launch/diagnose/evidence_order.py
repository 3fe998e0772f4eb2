"""The order in which evidence decides why an attempt failed, and which rank failed first.

1. What the operating system and Slurm saw: signals and exit codes, counted kills for lack of memory, the states of the
   job and its nodes, Slurm's own lines in their own form, and the order of the ends by the clock of their host.
2. What the watcher saw: which rank ended or stopped first, where it stood, and that nothing went on any more.
3. What the launcher reports: torchrun's list and error files, the code that DeepSpeed passes on.
4. What an exception is: its type, its errno, and the code that raised it (meanings.py).
5. Words, last. What a program prints never outranks the others.

The rank that ended first failed first: by its own exception if it has one, else by the way it ended, unless it only
reports the loss of another that ended, with or without a word. Where nothing decides, no rank is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.diagnose import meanings
from hpc_launch.diagnose.diagnosis import CONSEQUENCE, SYMPTOM, Candidate, Quote
from hpc_launch.diagnose.evidence import AgentNote, Evidence, NodeExit, WorkerFailure
from hpc_launch.diagnose.log_candidates import ENDED_BY_OTHERS, counted
from hpc_launch.diagnose.root_cause import choose, compared, without_a_line
from hpc_launch.diagnose.rule_hits import workers_of

_NAMES_FIRST = frozenset({"mpi-abort", "launcher-first"})
"""The rules for what launchers report of a rank that ended before the others."""
_WAITS = frozenset({"rdzv_timeout", "rdzv_connect"})
"""What a rank reports that waited for others, which may have ended before they joined."""
_ENDED = frozenset({"death", "oom_kill", "spared", "left"})
_NEAR_S = 30.0
"""So long before a silence was seen to begin may the end of the rank lie that the others wait for."""
_BY_OTHERS = frozenset({meanings.KILL, meanings.ABORT})
"""Signals by which launchers, after SIGTERM, and NCCL's watchdog end a rank for another one."""


class RankEnd(Struct, frozen=True):
    """The end of one rank."""

    rank: int
    quote: Quote
    node: str | None = None
    time: float | None = None
    """When it failed, as exactly as known: an exception comes before the end of its process."""
    code: int | None = None
    """As in meanings.py; None where nobody saw it."""
    memory: bool | None = None
    """Whether the kernel killed it for lack of memory; None if unknown."""
    gone: float | None = None
    """When the watcher saw that its process had ended: then `time` is exact."""
    raised: bool = False
    """Whether `time` is that of its exception."""
    noted: float | None = None
    """When the file with its code was written, which may be by another clock."""


def find(evidence: Evidence, solid: Sequence[Candidate], faint: Sequence[Candidate]) -> Candidate | None:
    """The root cause; None where nothing hints at one."""
    root = choose(solid)
    if root is None or (root.order >= SYMPTOM and evidence.alive):
        root = without_a_line(evidence, faint) or root
    if root is None:
        ends = [] if evidence.alive else first_ends(evidence, solid)
        return _of_end(ends[0], solid) if ends and ends[0].code else None
    if root.cause in _WAITS and root.rank is not None:
        waiting = {one.rank for one in solid if one.cause in _WAITS} | {None}
        root = choose([one for one in solid if _is_own(one) and one.rank not in waiting]) or root
    return compared(_by_ends(root, evidence, solid), evidence)


def _by_ends(root: Candidate, evidence: Evidence, solid: Sequence[Candidate]) -> Candidate:
    """The root where the ends of the ranks are known: levels 1 to 3 outrank what was printed."""
    ends = first_ends(evidence, solid)
    if root.cause == "host_oom_kill":  # Slurm reports it in the log of any rank
        killed = next((end for end in ends if end.memory), None)
        return root if killed is None else _at(root, killed)
    for note in (one for one in evidence.notes if one.kind == "hang"):  # the watcher ended those that were left
        begun, noticed = (note.time or 0.0) - _NEAR_S, note.noticed or 0.0
        alone = (end for end in ends if end.time is not None and begun < end.time < noticed)
        first = next((end for end in alone if end.code != 0 or _is_short(evidence)), None)
        if first is None or root.failure_class != "hang_no_progress":
            return root
        return _own(first, solid) or _of_end(first, solid)
    if not ends or (root.proven and root.code is None and root.order < CONSEQUENCE):
        return root
    if len(ends) == 1 and not any(one.rank is not None for one in solid):  # a program that is no rank among others
        root, *solid = [replace(one, rank=ends[0].rank) if one.rank is None else one for one in (root, *solid)]
    spoken = [one for one in solid if one.order < SYMPTOM and one.code is None and not _is_own(one)]
    if not spoken or any(scan.complete for scan in evidence.logs):  # nobody lost a rank that left, or it was done
        ends = [end for end in ends if end.code != 0] or ends
    first = first_of(ends, solid)
    if _is_victim(first or ends[0], solid):
        before = (end for end in ends if _may_come_before(end, first or ends[0]))
        first = next((end for end in before if not _is_victim(end, solid)), first)
    if first is None and root.rank is None and root.order >= SYMPTOM:  # as a launcher passes it on
        root = next((_of_end(end, solid) for end in ends if end.code), root)
    if first is None:
        return root if _is_own(root) else replace(root, rank=None, node=None)
    own = _own(first, solid)
    if _is_own(root) and root.rank != first.rank:
        if root.rank is None or first.time is None:
            return root
        if own is not None and (first.raised or own.band <= root.band):
            return own
        return _of_end(first, solid) if own is None and _is_sudden(first) else root
    if own is not None:
        return own
    lost = choose([one for one in spoken if one.rank == first.rank or (one.rank is None and first.code in (None, 1))])
    if first.code == meanings.ABORT and spoken:  # an exception of C++ ends its process in this way: NCCL's watchdog
        after = any(end.rank == root.rank and _may_come_before(first, end) for end in ends)
        if lost or not after or root.failure_class == "nccl_timeout":
            return lost or root
    if lost is None or _is_sudden(first):
        return _of_end(first, solid)
    return _at(lost, first)


def first_of(ends: Sequence[RankEnd], solid: Sequence[Candidate]) -> RankEnd | None:
    """The first to fail; of several that were seen to end at once the only one that lost no other, or the only one with
    a cause of its own; else none."""
    tied = [end for end in ends if end.time == ends[0].time] if ends[0].gone is not None else list(ends[:1])
    if len(tied) > 1:
        tied = [end for end in tied if end.code != meanings.TERMINATED and not _is_victim(end, solid)]
    if len(tied) > 1:
        tied = [end for end in tied if _own(end, solid) or end.code not in (None, 0, 1)]
    return tied[0] if len(tied) == 1 else None


def _before(one: RankEnd, other: RankEnd) -> bool:
    """Whether one ended before the other, by the files with their codes, else as the watchers saw it."""
    if one.noted and other.noted:
        return one.noted < other.noted
    return (one.gone or math.inf) < (other.gone or 0.0)


def _may_come_before(end: RankEnd, victim: RankEnd) -> bool:
    """Whether it may be the loss of this one that the victim reports: an end that others cause by no signal or code of
    theirs, or one that was seen no later."""
    alone = (end.code or 0) > 1 or (_is_sudden(end) and end.code not in _BY_OTHERS)
    at_once = end.gone is not None and end.gone == victim.gone and end.code != meanings.TERMINATED
    return alone or at_once or _before(end, victim)


def _is_sudden(end: RankEnd) -> bool:
    """Whether a signal ended it that no launcher sends, before any exception."""
    return end.code is not None and end.code < 0 and end.code != meanings.TERMINATED and not end.raised


def _is_victim(end: RankEnd, solid: Sequence[Candidate]) -> bool:
    """Whether all that a rank reports is the loss of others, or an exception whose words are lost."""
    words = [one for one in solid if one.rank == end.rank and one.code is None and one.order < SYMPTOM]
    return bool(words or end.raised) and not _is_sudden(end) and not any(map(_is_own, words))


def _is_short(evidence: Evidence) -> bool:
    """Whether the training is known to have had steps left."""
    return evidence.start is not None or any(scan.last_total and not scan.complete for scan in evidence.logs)


def _own(end: RankEnd, solid: Sequence[Candidate]) -> Candidate | None:
    """The cause that a rank itself reports."""
    return choose([one for one in solid if one.rank == end.rank and _is_own(one)])


def _is_own(one: Candidate) -> bool:
    """Whether a rank reports a cause of its own, such as an interrupt, not the loss of others or a mere end."""
    limit = SYMPTOM if one.failure_class == "cancelled_by_user" else CONSEQUENCE
    return one.code is None and one.order < limit


def _at(root: Candidate, end: RankEnd) -> Candidate:
    return replace(root, node=end.node or root.node, rank=end.rank, time=end.time, timed=True)


def _of_end(end: RankEnd, solid: Sequence[Candidate]) -> Candidate:
    """The root cause that is nothing but an end: as Slurm or a launcher reports it, else as the watcher saw it."""
    reported = choose([one for one in solid if one.rank == end.rank and one.code is not None and one.code == end.code])
    if reported is not None:
        return _at(reported, end)
    found = meanings.meaning(end.code, end.memory if end.code is not None or end.memory else None)
    cause = found.cause or ("task_exit_nonzero" if (end.code or 0) > 0 else "task_died_by_signal")
    return Candidate(
        found.failure_class, cause, found.order, (end.quote,), end.node, end.rank, end.time, verdict=found.verdict,
        advice=found.advice, rule="rank-end", code=end.code,
    )  # fmt: skip


def first_ends(evidence: Evidence, solid: Sequence[Candidate]) -> list[RankEnd]:
    """The ends of the ranks, the first one first, by the strongest source that knows any.

    Those are the watchers, which a rank may outrun, the files with exit codes, srun's lines, and torchrun's list.
    """
    lines = [one for one in solid if one.rank is not None and (one.code is not None or one.rule in _NAMES_FIRST)]
    lines = sorted((one for one in lines if one.order != ENDED_BY_OTHERS), key=lambda one: (one.source, one.line))
    seen = {note.rank: note for note in evidence.notes if note.kind in _ENDED and note.rank is not None}
    codes: dict[int | None, int | None] = {}
    for scan in evidence.logs:  # torchrun lists all workers of its node that failed: who ended before them did well
        listed = {one.rank: one.exit_code for one in scan.workers}
        last = max((seen[rank].time or 0.0 for rank in listed if rank in seen), default=0.0)
        here = [rank for rank, note in seen.items() if note.node == scan.node and (note.time or math.inf) <= last]
        codes.update((rank, 0) for rank in here)
        codes.update(listed)
    codes.update((one.rank, one.code) for one in reversed(lines) if one.code is not None)
    files = {one.rank: one for one in evidence.node_exits if one.rank is not None}
    codes.update((rank, one.code) for rank, one in files.items())
    whole = 0 if evidence.end is not None and evidence.end.exit_code == 0 else None  # then every rank ended with 0
    found: dict[int, RankEnd] = {}
    for rank, note in seen.items():
        end = _of_note(note, codes.get(rank, whole))
        found[rank] = replace(end, noted=files[rank].time) if rank in files else end
    reported: list[NodeExit | WorkerFailure] = [*evidence.node_exits, *workers_of(evidence)]
    for told in reported:
        if told.rank is not None:
            found.setdefault(told.rank, _reported(told, evidence))
    ends = list(found.values()) or [RankEnd(one.rank or 0, one.quotes[-1], one.node, code=one.code) for one in lines]
    # A launcher ends others, by SIGTERM, only after one has failed.
    asked = [end for end in ends if end.code == meanings.TERMINATED]
    asked = [end for end in asked if any(one.code != 0 and _before(one, end) for one in ends)]
    ends = [end for end in ends if end not in asked] or ends
    return sorted(ends, key=lambda one: math.inf if one.time is None else one.time)


def _reported(one: NodeExit | WorkerFailure, evidence: Evidence) -> RankEnd:
    code, line = (one.code, 0) if isinstance(one, NodeExit) else (one.exit_code, one.exit_line)
    quote, code = Quote(one.file, line, f"it ended with {code}"), code and meanings.unfolded(code)
    memory = counted(one.rank, one.node, evidence)
    noted = one.time if isinstance(one, NodeExit) else None
    return RankEnd(one.rank or 0, quote, one.node or None, one.time, code, memory, noted=noted)


def _of_note(note: AgentNote, known: int | None) -> RankEnd:
    code = -note.signal if note.signal else 0 if note.kind == "left" else note.code if note.code is not None else known
    return RankEnd(
        rank=note.rank or 0,
        quote=Quote(note.file, 0, note.text),
        node=note.node,
        time=note.time if note.raised is None else note.raised,
        code=None if code is None else meanings.unfolded(code),
        memory={"oom_kill": True, "spared": False}.get(note.kind, note.oom_kill),
        gone=note.time,
        raised=note.raised is not None,
    )


_OF_NOTES = {
    "hang": ("hang_no_progress", "unknown", 28),
    "gpu": ("gpu_hardware", "gpu_ecc", 10),
    "oom_kill": ("host_oom", "host_oom_kill", 10),
}


def from_notes(notes: Iterable[AgentNote]) -> list[Candidate]:
    """Candidates from the notes of the watcher inside the job."""
    found: list[Candidate] = []
    for note in notes:
        if note.kind in _OF_NOTES:
            quotes = (Quote(note.file, 0, note.text),)
            rank = note.rank if note.rank is not None else next(iter(note.ranks), None)
            blames = note.node if note.kind == "gpu" else None
            found += [Candidate(*_OF_NOTES[note.kind], quotes, note.node, rank, note.time, blames, certain=True)]
    return found
