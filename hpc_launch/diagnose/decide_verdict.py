"""The verdict on an attempt that ended: a pure function of its diagnosis, the attempts before it, progress and policy.

The default verdict comes with the diagnosis. The job file may replace it for a class. Then the limits apply: the budget
of the class, the attempts in a row without progress, and the attempts in all.

The changes of RETRY_CHANGED, one step of a list per attempt: smaller micro batch, more memory, longer, elsewhere.

What changes the training (precision, offloading, checkpointing of activations) is no step of the default lists: the
job file has to name it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.diagnose.diagnosis import NEVER_SUBMITTED, TOO_FEW, Action, Diagnosis, Verdict
from hpc_launch.job.retry import Retry, RetryStep
from hpc_launch.job.units import counted, format_memory, format_time
from hpc_launch.plan.recorded_parts import BatchPlan, RetryPlan

STEPS = {
    "cuda_oom": (RetryStep(change="half_batch", times=10),),
    "host_oom": (RetryStep(memory="x1.5", times=3),),
}
"""The steps if the job file names none."""


class ChangeFacts(RetryPlan, frozen=True):
    """The requests of the ended attempt, and the limits of its site."""

    spare_nodes: int | None = None
    """How many nodes of the queue the job can do without; None if the size of the queue is unknown."""
    excluded: tuple[str, ...] = ()


class JobChange(Struct, frozen=True):
    """A step as `--set` options and as text, and the number of steps used with it."""

    sets: tuple[str, ...]
    words: str
    used: int


def next_change(kind: str, steps: Sequence[RetryStep] | None, used: int, facts: ChangeFacts) -> JobChange | None:
    """The first step after `used` that changes something; None if none is left."""
    chosen = tuple(steps or ()) or STEPS.get(kind, ())
    all_steps = [step for step in chosen for _ in range(step.times)]
    for at, step in enumerate(all_steps[used:], used + 1):
        changes = list(_changes(step, facts))
        if changes:
            sets = tuple(f"{key}={value}" for key, value in changes)
            return JobChange(sets, ", ".join(sets), at)
    return None


def _changes(step: RetryStep, facts: ChangeFacts) -> Iterator[tuple[str, str]]:
    if step.change == "half_batch" and facts.batch is not None:
        yield from _smaller(facts.batch)
    if step.memory is not None:
        yield from _memory(step.memory, facts)
    if step.time is not None and facts.time_s is not None:
        longer = _capped(facts.time_s * _factor(step.time), facts.most_time_s)
        if longer != facts.time_s:
            yield "time", format_time(longer)
    if step.nodes is not None and facts.nodes is not None:
        nodes = max(_capped(facts.nodes * _factor(step.nodes), facts.max_nodes), 1)
        if nodes != facts.nodes:
            yield "nodes", str(nodes)
    if step.queue is not None and step.queue != facts.queue:
        yield "queue", json.dumps(step.queue)
    for key, value in step.set.items():
        yield key, json.dumps(value)


def _smaller(batch: BatchPlan) -> Iterator[tuple[str, str]]:
    """Divide the micro batch by its smallest prime factor and multiply the accumulation by it: 8 by 2, 9 by 3."""
    if batch.micro < 2:
        return
    part = next((n for n in range(2, math.isqrt(batch.micro) + 1) if batch.micro % n == 0), batch.micro)
    yield batch.micro_key, str(batch.micro // part)
    if batch.accumulation_key is not None:
        yield batch.accumulation_key, str(batch.accumulation * part)


def _memory(factor: str, facts: ChangeFacts) -> Iterator[tuple[str, str]]:
    if facts.memory is None:
        # The allocated memory is unknown; the whole node is more, unless the job had it already.
        yield "memory", "0"
    elif facts.memory > 0:
        more = _capped(facts.memory * _factor(factor), facts.node_memory)
        if more > facts.memory:
            yield "memory", format_memory(more)


def _capped(value: float, most: int | None) -> int:
    whole = math.floor(value + 1e-9)
    return whole if most is None else min(whole, most)


def _factor(text: str) -> float:
    return float(text.removeprefix("x"))


BUDGET = 3
BUDGETS = {"preempted": 10, "node_failure": 4, "gpu_hardware": 4, "gpu_driver": 4, "nccl_system_error": 4}
"""How often a class is retried without progress, unless the job file sets it. Higher for what can happen to any job
at any time (preemption), and for classes whose evidence names the node to exclude."""

CONFIRMED = frozenset({"segfault_or_abort", "cuda_assert_or_illegal_access", "unknown"})
"""Classes that a flipped bit or a bad node can cause too: retried once where the training had made progress."""

CHANGES_BY_ITSELF = {"port_in_use": "another job uses another port"}
"""Classes whose next attempt differs without any change to the job."""

FREE = frozenset({"time_limit", "preempted"})
"""Ends that are no failures: with progress they do not count."""

MOST_NEVER_SUBMITTED = 5
"""So many attempts in a row that were never submitted stop a run: something kills every driver."""


AGAIN = frozenset({"RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE"})
"""Actions that another attempt follows."""


class PastAttempt(Struct, frozen=True):
    """An earlier attempt, and the verdict on it."""

    failure_class: str = "unknown"
    action: str = "STOP"
    further: bool = False
    """Whether it got further than all attempts before it."""
    steps_used: int = 0
    """`Verdict.steps_used` of that verdict."""
    blamed: tuple[str, ...] = ()
    """Nodes that the evidence named."""
    cause: str | None = None
    exclude: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    @property
    def again(self) -> bool:
        """Whether another attempt follows."""
        return self.action in AGAIN


class AttemptProgress(Struct, frozen=True):
    """Whether the attempt got further than all before it; false where nothing shows it."""

    further: bool
    words: str = "no step or checkpoint seen"


class Policy(Struct, frozen=True):
    """What the job file asks for, and what a change starts from."""

    retry: Retry = Retry()
    facts: ChangeFacts = ChangeFacts()
    avoided: tuple[str, ...] = ()
    """Nodes that hpc-launch excluded from this attempt, the newest last."""


def decide(diagnosis: Diagnosis, history: Sequence[PastAttempt], progress: AttemptProgress, policy: Policy) -> Verdict:
    """The verdict on the attempt that `diagnosis` is about. `history`: the attempts before it, oldest first."""
    kind = diagnosis.failure_class
    if diagnosis.cause in (NEVER_SUBMITTED, TOO_FEW):
        return _repeated(diagnosis.cause, history, policy.avoided)
    if kind == "success":
        return Verdict("NONE", "it ended well")
    if kind == "cancelled_by_user":
        return Verdict("STOP", "somebody cancelled it")
    wanted, why = _wanted(diagnosis, progress, policy.retry)
    if wanted == "STOP":
        return Verdict("STOP", why)
    counted = _counted(history)
    verdict = _proposed(wanted, why, diagnosis, counted, policy)
    if verdict.action == "STOP":
        return verdict
    spent = _spent(verdict.action, kind, counted, progress, policy.retry)
    if spent is not None:
        return Verdict("STOP", spent)
    if verdict.action == "RETRY":
        earlier, pause = sum(past.action == "RETRY" for past in _stretch(counted, progress)), policy.retry.backoff
        # An exponent that is bounded: a factor to a large power is no float any more.
        return replace(verdict, delay_s=float(min(pause.first * pause.factor ** min(earlier, 64), pause.most)))
    return verdict


def default_action(diagnosis: Diagnosis) -> Action:
    """What to do by default, where no verdict was made: without history, and where a person chooses the nodes."""
    elsewhere = ("any other place",) if diagnosis.place_known else ()
    return _where(diagnosis.default_verdict, elsewhere, blamed_before=(), room=1)[0]


def _where(
    wanted: Action, named: tuple[str, ...], *, blamed_before: Collection[str], room: int
) -> tuple[Action, tuple[str, ...]]:
    """Choose between RETRY and RETRY_ELSEWHERE; with the nodes that should be excluded. Nothing else chooses.

    A node that the evidence names is excluded where the class asks for it, or where an earlier attempt named it too,
    if there is room for more exclusions.
    """
    if wanted not in ("RETRY", "RETRY_ELSEWHERE"):
        return wanted, ()
    nodes = named if wanted == "RETRY_ELSEWHERE" else tuple(node for node in named if node in blamed_before)
    return ("RETRY_ELSEWHERE" if 0 < len(nodes) <= room else "RETRY"), nodes


def _counted(history: Sequence[PastAttempt]) -> list[PastAttempt]:
    """The attempts since a person last resubmitted the run; attempts that never ran do not count."""
    counted: list[PastAttempt] = []
    for past in history:
        if not past.again:
            counted = []
        elif past.cause not in (NEVER_SUBMITTED, TOO_FEW):
            counted.append(past)
    return counted


def _repeated(cause: str, history: Sequence[PastAttempt], avoided: Sequence[str]) -> Verdict:
    """The verdict on an attempt that never ran: that on the attempt before it, again."""
    last = history[-1] if history else None
    if last is None or not last.again:
        return Verdict("STOP", "the job was never submitted")
    action: Any = last.action  # one of AGAIN
    if cause == TOO_FEW:
        node = avoided[-1]
        reason = f"too few nodes are left without {', '.join(avoided)}: {node} is no longer excluded"
        return Verdict(action, reason, readmit=(node,), steps_used=last.steps_used)
    recent = history[-MOST_NEVER_SUBMITTED:]
    if sum(past.cause == NEVER_SUBMITTED for past in recent) >= MOST_NEVER_SUBMITTED:
        reason = f"{MOST_NEVER_SUBMITTED} attempts in a row were never submitted; find out what kills hpc-launch"
        return Verdict("STOP", reason)
    # The steps and the changes are those of the attempt that this one should have been.
    reason = "the job of this attempt was never submitted"
    return Verdict(action, reason, exclude=last.exclude, sets=last.sets, steps_used=last.steps_used)


def _wanted(diagnosis: Diagnosis, progress: AttemptProgress, retry: Retry) -> tuple[Action, str]:
    """The action before budgets, and why."""
    kind = diagnosis.failure_class
    reaction = retry.on.get(kind)
    if reaction is not None and (reaction.verdict or reaction.steps):
        return reaction.verdict or "RETRY_CHANGED", f"set in the job file for {kind}"
    if kind == "time_limit" and diagnosis.default_verdict == "CONTINUE" and not progress.further:
        return "STOP", f"the next attempt would begin where this one did: {progress.words}"
    if diagnosis.default_verdict not in ("STOP", "NONE"):
        return diagnosis.default_verdict, kind
    asserted = "assert" in (diagnosis.cause or "")
    if kind in CONFIRMED and progress.further and not asserted:
        # Once: the next attempt either gets further or stops here.
        return "RETRY", f"{kind} after progress: one more attempt shows whether it happens again"
    return "STOP", f"{kind}: {diagnosis.advice or 'another attempt would end in the same way'}"


def _proposed(
    wanted: Action, why: str, diagnosis: Diagnosis, history: Sequence[PastAttempt], policy: Policy
) -> Verdict:
    kind, facts = diagnosis.failure_class, policy.facts
    named = tuple(node for node in dict.fromkeys(diagnosis.bad_nodes) if node not in facts.excluded)
    room = policy.retry.most_excluded - len(facts.excluded)
    if facts.spare_nodes is not None:
        room = min(room, facts.spare_nodes - len(facts.excluded))
    blamed_before = {node for past in history for node in past.blamed}
    action, nodes = _where(wanted, named, blamed_before=blamed_before, room=room)
    if action == "RETRY_ELSEWHERE":
        return Verdict(action, f"{why} on {', '.join(nodes)}", exclude=nodes)
    if nodes:
        return Verdict(action, f"{why} on {', '.join(nodes)}; too many nodes are excluded already")
    if wanted == "RETRY_ELSEWHERE":
        return Verdict(action, f"{why}; the evidence names no node to exclude")
    if wanted == "RETRY_CHANGED":
        reaction = policy.retry.on.get(kind)
        if kind in CHANGES_BY_ITSELF and not (reaction and reaction.steps):
            return Verdict(wanted, f"{why}: {CHANGES_BY_ITSELF[kind]}")
        used = max((past.steps_used for past in history if past.failure_class == kind), default=0)
        change = next_change(kind, reaction.steps if reaction else None, used, facts)
        if change is None:
            return Verdict("STOP", f"{kind}: no change is left to try; add one to retry.on.{kind}")
        return Verdict(wanted, f"{why}: {change.words}", sets=change.sets, steps_used=change.used)
    return Verdict(wanted, why)


def _spent(
    action: Action, kind: str, history: Sequence[PastAttempt], progress: AttemptProgress, retry: Retry
) -> str | None:
    """Which limit another attempt would break, in words; None for none."""
    spent = sum(not (past.further and past.failure_class in FREE) for past in history)
    spent += not (progress.further and kind in FREE)
    if spent >= retry.max_attempts:
        made = counted(spent, "attempt was", "attempts were")
        return f"{kind}, and {made} made: retry.max_attempts is {retry.max_attempts}"
    still = [past for past in _stretch(history, progress) if not past.further]
    same = sum(past.failure_class == kind for past in still) + (not progress.further)
    # A list of changes is its own budget.
    usual = None if action == "RETRY_CHANGED" and kind not in CHANGES_BY_ITSELF else BUDGETS.get(kind, BUDGET)
    budget = retry.budgets.get(kind, usual)
    if budget is not None and (same > budget or budget == 0):
        return f"{kind} again, {counted(same, 'attempt')} without progress ({progress.words}): its budget is {budget}"
    if action in ("RETRY", "CONTINUE") and kind != "preempted" and kind not in retry.budgets:
        plain = sum(past.action in ("RETRY", "CONTINUE") and past.failure_class != "preempted" for past in still)
        plain += not progress.further
        if plain >= retry.no_progress:
            return f"{kind}, and {counted(plain, 'attempt')} in a row made no progress: {progress.words}"
    return None


def _stretch(history: Sequence[PastAttempt], progress: AttemptProgress) -> list[PastAttempt]:
    """The attempts just before this one that did not get further, if this one did not either."""
    stretch: list[PastAttempt] = []
    if progress.further:
        return stretch
    for past in reversed(history):
        if past.further:
            break
        stretch.append(past)
    return stretch
