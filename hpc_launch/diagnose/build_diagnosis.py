"""Build the diagnosis from the root cause: who failed first, which nodes are to blame, what else was seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from hpc_launch.diagnose import diagnosis, evidence_order, log_candidates
from hpc_launch.diagnose.diagnosis import (
    CONSEQUENCE,
    NODE_CHECK,
    NODE_LOST,
    NODE_UNFIT,
    SYMPTOM,
    Action,
    Candidate,
    Confidence,
    Diagnosis,
    FirstFailure,
    Quote,
)
from hpc_launch.diagnose.evidence import Evidence
from hpc_launch.diagnose.rule_hits import from_workers
from hpc_launch.diagnose.rulebook import Rulebook


@dataclass(frozen=True)
class DiagnosisInput:
    """One attempt, or the logs of any job, to be diagnosed."""

    evidence: Evidence
    rules: Rulebook

    @cached_property
    def _from_logs(self) -> tuple[list[Candidate], list[Candidate]]:
        return log_candidates.from_logs(self.evidence, self.rules)

    @cached_property
    def solid(self) -> list[Candidate]:
        """Everything that may be the root cause."""
        evidence = self.evidence
        return [
            *self._from_logs[0],
            *from_workers(evidence, self.rules),
            *diagnosis.from_scheduler(evidence),
            *evidence_order.from_notes(evidence.notes),
        ]

    @property
    def faint(self) -> list[Candidate]:
        """What the program survived, or only warned of."""
        return self._from_logs[1]


_NODES_MATTER = frozenset({"gpu_hardware", "gpu_driver", "node_failure", "nccl_system_error"})
"""Classes in which a node is at fault, not the program."""

_NO_PLACE = frozenset({"preempted", "submit_rejected"})
"""Classes that no rank or node caused."""

MOST_QUOTES = 6
MOST_ALSO = 8
CLEAR = 2
"""The band of causes that are clear by themselves."""


def build(root: Candidate, subject: DiagnosisInput) -> Diagnosis:
    """The diagnosis with this root cause."""
    evidence, solid = subject.evidence, subject.solid
    root = _with_node(root, solid)
    facts = subject.rules.classes[root.failure_class]
    first = _first_failure(root, evidence, solid)
    proven = any(one.proven and one.failure_class == root.failure_class for one in (root, *solid))
    bad, why_bad = _bad_nodes(root, first, evidence, proven=proven)
    named = {_known_name(one.blames, evidence) for one in (root, *solid) if one.proven}
    proven_nodes = bad if why_bad else tuple(node for node in bad if node in named)
    # A broken GPU or driver belongs to the node that wrote the log; a person knows which, a driver does not.
    broken = root.failure_class == "gpu_hardware" or root.cause == "gpu_driver_mismatch"
    place_known = bool(bad or root.peer or first.node) or (broken and not evidence.of_a_run)
    if why_bad and len(bad) == 1 and first.node is None:
        first = FirstFailure(bad[0], first.rank, first.time)
    quotes = [*root.quotes, *_last_words(root, evidence)]
    for candidate in sorted(solid, key=lambda one: one.order):
        if len(quotes) >= MOST_QUOTES:
            break
        if candidate.failure_class == root.failure_class and candidate.certain:
            quotes += [quote for quote in candidate.quotes if quote not in quotes]
    stepless = all(scan.steps_seen < log_candidates.WENT_ON for scan in evidence.logs)
    default: Action = (root.at_start if stepless else None) or root.verdict or facts.verdict
    return Diagnosis(
        failure_class=root.failure_class,
        level=facts.level,
        cause=root.cause or None,
        confidence=root.confidence or _confidence(root, solid),
        first_failure=first,
        evidence=(*quotes[:MOST_QUOTES], *why_bad),
        also=_also(root, solid, subject.faint),
        default_verdict=default,
        bad_nodes=bad,
        proven_nodes=proven_nodes,
        place_known=place_known,
        advice=root.advice or facts.advice,
        start=evidence.start if root.failure_class != "success" and not evidence.alive else None,
    )


def _last_words(root: Candidate, evidence: Evidence) -> list[Quote]:
    """The last line of the task that failed, where no message says why: it is often a message that no rule knows."""
    if root.code is None or root.rank is None:
        return []
    return [
        Quote(scan.name, scan.lines, scan.last_line)
        for scan in evidence.logs
        if scan.rank == root.rank and scan.last_line.isprintable() and scan.last_line.strip()
    ][:1]


def _with_node(root: Candidate, solid: list[Candidate]) -> Candidate:
    """For a failed node, the root cause with the node that another message of Slurm names."""
    if root.failure_class != "node_failure" or root.blames is not None:
        return root
    named = [one for one in solid if one.failure_class == "node_failure" and one.blames is not None]
    if not named:
        return root
    first = min(named, key=lambda one: (one.order, one.source, one.line))
    return replace(root, blames=first.blames, certain=first.certain, by_slurm=first.by_slurm)


def _first_failure(root: Candidate, evidence: Evidence, solid: list[Candidate]) -> FirstFailure:
    """The place of the root cause, completed from the launcher's lists."""
    if root.order >= 90:  # nothing failed, or nothing is known
        return FirstFailure()
    node, rank, time = root.node, root.rank, root.time if root.timed else None
    if root.failure_class in _NO_PLACE:
        return FirstFailure(node, rank, time)
    if root.failure_class == "node_failure" and root.rule != "node-unhealthy":
        # Slurm's messages also name the healthy node that wrote them, and tasks that srun ended for another node.
        return FirstFailure(_known_name(root.blames, evidence), None, time)
    if root.failure_class in {"time_limit", "cancelled_by_user", "hang_no_progress"}:
        named = [one.node for one in solid if one.failure_class == root.failure_class and one.node]
        return FirstFailure(node or (named[0] if named else None), rank, time)
    ends = evidence_order.first_ends(evidence, solid)
    undecided = ends and root.order >= CONSEQUENCE and evidence_order.first_of(ends, solid) is None
    if rank is None and undecided:
        return FirstFailure(None, None, time)
    same = [one for one in solid if one.failure_class == root.failure_class and one.source == root.source]
    if rank is None and node is None:
        node, rank = next(((one.node, one.rank) for one in same if one.rank is not None or one.node), (None, None))
    if rank is None:
        # A single machine appears as localhost in one place and by its name in another.
        here = [end for end in ends if node is None or end.node is None or _short(end.node) == _short(node)]
        for end in [*here, *([] if len(evidence.nodes) > 1 else ends)][:1]:
            rank, node = end.rank, node or end.node
            time = time if time is not None else end.time
    if rank is None and node is None and root.failure_class == "host_oom":
        # slurmstepd names its node only where it ends the rest of the job.
        ended_on = {one.node for one in solid if one.rule in {"slurm-cancelled", "slurm-step-cancelled"}}
        if len(ended_on) == 1:
            node = ended_on.pop()
    if rank is not None and node is None:
        node = next((one.node for one in solid if one.rank == rank and one.node), None)
    own = (end.time for end in ends if end.rank == rank)
    return FirstFailure(_known_name(node, evidence), rank, next(own, None) if time is None else time)


def _bad_nodes(
    root: Candidate, first: FirstFailure, evidence: Evidence, *, proven: bool
) -> tuple[tuple[str, ...], tuple[Quote, ...]]:
    """The nodes to blame, and the evidence for it where the root cause itself names none. `proven`: by others, too."""
    if root.failure_class not in _NODES_MATTER and root.cause != "interpreter_missing":
        return (), ()
    if root.cause in (NODE_CHECK, NODE_LOST, NODE_UNFIT):
        faults = evidence.node_faults
        quotes = tuple(Quote(fault.file, 0, f"{fault.node}: {fault.text}") for fault in faults[:MOST_QUOTES])
        return tuple(dict.fromkeys(fault.node for fault in faults)), quotes
    name = root.blames
    if name is None and (root.failure_class in {"gpu_hardware", "gpu_driver"} or root.rule == "node-unhealthy"):
        name = first.node
    name = _known_name(name, evidence)
    if name is not None and (not evidence.nodes or name in evidence.nodes):
        return (name,), ()
    failed = root.failure_class == "node_failure" and root.order < SYMPTOM
    return _failed_nodes(evidence) if failed and proven else ((), ())


def _failed_nodes(evidence: Evidence) -> tuple[tuple[str, ...], tuple[Quote, ...]]:
    """The nodes that failed where no log names one, as the log of a batch host that died just stops.

    That is the only node of the job, or those of several that the scheduler has taken out of service since.
    """
    nodes, down = evidence.nodes, evidence.driver.node_states
    if len(nodes) == 1:
        state = evidence.scheduler.state if evidence.scheduler is not None else "lost"
        return nodes, (Quote("scheduler", 0, f"{state}, and {nodes[0]} was the only node"),)
    if len(down) == len(nodes):
        return (), ()
    return tuple(node for node, _ in down), tuple(Quote("sinfo", 0, f"{node} {state}") for node, state in down)


def _known_name(name: str | None, evidence: Evidence) -> str | None:
    """The name of a node in Slurm, where a log has another form of it."""
    if name is None or name in evidence.nodes:
        return name
    for known in evidence.nodes:
        if _short(known) == _short(name):
            return known
    return name


def _short(name: str) -> str:
    return name.split(".", maxsplit=1)[0].lower()


def _confidence(root: Candidate, solid: list[Candidate]) -> Confidence:
    """High only for a clear cause that no other clear cause in the same log contests."""
    if root.certain:
        return "high" if root.order < SYMPTOM else "low"
    if root.band <= CLEAR:
        others = {root.failure_class, "unknown"}
        near = (one for one in solid if one.source == root.source and one.band <= CLEAR)
        return "medium" if any(one.failure_class not in others for one in near) else "high"
    return "medium" if root.band <= 4 else "low"


def _also(root: Candidate, solid: list[Candidate], faint: list[Candidate]) -> tuple[str, ...]:
    """Other classes that were seen, each with its count and first place; then those that the program survived."""
    words: list[str] = []
    listed = set(root.quotes)
    for name, group in (("", solid), (" (survived, or only a warning)", faint)):
        seen: dict[str, list[Candidate]] = {}
        for candidate in sorted(group, key=lambda one: one.order):
            quote = candidate.quotes[-1]
            known = candidate.failure_class not in {root.failure_class, "unknown"}
            if known and quote not in listed and candidate.order < SYMPTOM:
                listed.add(quote)
                seen.setdefault(candidate.failure_class, []).append(candidate)
        for failure_class, ones in seen.items():
            quote = min(ones, key=lambda one: (one.source, one.line)).quotes[-1]
            where = f"{quote.file}:{quote.line}" if quote.line else quote.file
            count = f"{len(ones)} times, first " if len(ones) > 1 else ""
            words.append(f"{failure_class}{name}: {count}{where}: {quote.text[:160]}")
    return tuple(words[:MOST_ALSO])
