"""The verdict on an attempt that ended: pure, from its diagnosis, what was tried before, progress and policy.

The verdict by class comes with the diagnosis. It is changed by what the job file says of the class, then by what was
tried: a budget of the class, the attempts in a row that did not get further, the attempts in all.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.recover.diagnosis import Action, Diagnosis, Verdict
from hpc_launch.recover.retry_changes import ChangeFacts, next_change
from hpc_launch.spec.retry import Retry

BUDGET = 3
BUDGETS = {"preempted": 10, "node_failure": 4, "gpu_hardware": 4, "gpu_driver": 4, "nccl_system_error": 4}
"""How often a class is tried again without progress, where the job file does not say. What others may do to a job at
any time (preemption) and what names the node to keep off have more."""

CONFIRMED = frozenset({"segfault_or_abort", "cuda_assert_or_illegal_access", "unknown"})
"""Classes that a flipped bit or a bad node can bring about too: tried once more where the training had got on."""

CHANGES_BY_ITSELF = {"port_in_use": "another job id takes another port"}
"""Classes whose next attempt differs without anybody changing anything."""

FREE = frozenset({"time_limit", "preempted"})
"""Ends that are no failures: with progress they are not counted."""


class PastAttempt(Struct, frozen=True):
    """An earlier attempt, and what was decided then."""

    failure_class: str
    action: Action
    progressed: bool
    """Whether it got further than all attempts before it."""
    ladder: int = 0
    """`Verdict.ladder` of then."""
    blamed: tuple[str, ...] = ()
    """Nodes that the evidence named."""


class AttemptProgress(Struct, frozen=True):
    """Whether the attempt that ended got further than all before it; where nothing can tell, it did not."""

    further: bool
    words: str = "nothing shows that it got further"


class Policy(Struct, frozen=True):
    """What the job file says, and what a change starts from."""

    retry: Retry = Retry()
    facts: ChangeFacts = ChangeFacts()


def decide(diagnosis: Diagnosis, history: Sequence[PastAttempt], progress: AttemptProgress, policy: Policy) -> Verdict:
    """What happens after the attempt that `diagnosis` is about; `history` has those before it, the first one first."""
    kind = diagnosis.failure_class
    if kind == "success":
        return Verdict("NONE", "it ended well")
    if kind == "cancelled_by_user":
        return Verdict("STOP", "somebody cancelled it")
    wanted, why = _wanted(diagnosis, progress, policy.retry)
    if wanted == "STOP":
        return Verdict("STOP", why)
    verdict = _proposed(wanted, why, diagnosis, history, policy)
    if verdict.action == "STOP":
        return verdict
    spent = _spent(verdict.action, kind, history, progress, policy.retry)
    if spent is not None:
        return Verdict("STOP", spent)
    if verdict.action == "RETRY":
        return replace(verdict, delay_s=_pause(history, progress, policy.retry))
    return verdict


def _wanted(diagnosis: Diagnosis, progress: AttemptProgress, retry: Retry) -> tuple[Action, str]:
    """The action before budgets, and why."""
    kind = diagnosis.failure_class
    reaction = retry.on.get(kind)
    if reaction is not None and (reaction.verdict or reaction.steps):
        return reaction.verdict or "RETRY_CHANGED", f"the job file says so of {kind}"
    if diagnosis.default_verdict not in ("STOP", "NONE"):
        return diagnosis.default_verdict, kind
    told = "assert" in (diagnosis.cause or "")
    if kind in CONFIRMED and progress.further and not told:
        # Once: the next one either gets further or is stopped here.
        return "RETRY", f"{kind} after progress: one more attempt tells whether it comes again"
    return "STOP", f"{kind}: {diagnosis.advice or 'another attempt would end in the same way'}"


def _proposed(
    wanted: Action, why: str, diagnosis: Diagnosis, history: Sequence[PastAttempt], policy: Policy
) -> Verdict:
    kind, facts = diagnosis.failure_class, policy.facts
    named = tuple(node for node in dict.fromkeys(diagnosis.bad_nodes) if node not in facts.excluded)
    twice = tuple(node for node in named if any(node in past.blamed for past in history))
    if wanted == "RETRY_ELSEWHERE" or (wanted == "RETRY" and twice):
        new = named if wanted == "RETRY_ELSEWHERE" else twice
        if not new:
            return Verdict("RETRY", f"{why}; no node is named that could be kept off")
        kept = len(facts.excluded) + len(new)
        if kept > policy.retry.most_excluded or (facts.spare_nodes is not None and kept > facts.spare_nodes):
            return Verdict("RETRY", f"{why} on {', '.join(new)}; too many nodes are kept off already")
        return Verdict("RETRY_ELSEWHERE", f"{why} on {', '.join(new)}", exclude=new)
    if wanted == "RETRY_CHANGED":
        reaction = policy.retry.on.get(kind)
        if kind in CHANGES_BY_ITSELF and not (reaction and reaction.steps):
            return Verdict("RETRY_CHANGED", f"{why}: {CHANGES_BY_ITSELF[kind]}")
        used = max((past.ladder for past in history if past.failure_class == kind), default=0)
        change = next_change(kind, reaction.steps if reaction else None, used, facts)
        if change is None:
            return Verdict("STOP", f"{kind}: no change is left to try; retry.on.{kind} may name some")
        return Verdict("RETRY_CHANGED", f"{why}: {change.words}", sets=change.sets, ladder=change.used)
    return Verdict(wanted, why)


def _spent(
    action: Action, kind: str, history: Sequence[PastAttempt], progress: AttemptProgress, retry: Retry
) -> str | None:
    """Which limit another attempt would break, in words; None for none."""
    counted = sum(not (past.progressed and past.failure_class in FREE) for past in history)
    counted += not (progress.further and kind in FREE)
    if counted >= retry.max_attempts:
        made = f"{_attempts(counted)} {'was' if counted == 1 else 'were'} made"
        return f"{kind}, and {made}: retry.max_attempts is {retry.max_attempts}"
    still = [past for past in _stretch(history, progress) if not past.progressed]
    same = sum(past.failure_class == kind for past in still) + (not progress.further)
    # A list of changes is its own budget.
    usual = None if action == "RETRY_CHANGED" and kind not in CHANGES_BY_ITSELF else BUDGETS.get(kind, BUDGET)
    budget = retry.budgets.get(kind, usual)
    if budget is not None and (same > budget or budget == 0):
        return f"{kind} again, {_attempts(same)} without getting further: its budget is {budget}"
    if action in ("RETRY", "CONTINUE") and kind != "preempted" and kind not in retry.budgets:
        plain = sum(past.action in ("RETRY", "CONTINUE") and past.failure_class != "preempted" for past in still)
        plain += not progress.further
        if plain >= retry.no_progress:
            return f"{kind}, and {_attempts(plain)} in a row did not get further: {progress.words}"
    return None


def _stretch(history: Sequence[PastAttempt], progress: AttemptProgress) -> list[PastAttempt]:
    """The attempts just before this one that did not get further, if this one did not either."""
    stretch: list[PastAttempt] = []
    if progress.further:
        return stretch
    for past in reversed(history):
        if past.progressed:
            break
        stretch.append(past)
    return stretch


def _pause(history: Sequence[PastAttempt], progress: AttemptProgress, retry: Retry) -> float:
    earlier = sum(past.action == "RETRY" for past in _stretch(history, progress))
    # An exponent that is bounded: a factor to a large power is no float any more.
    return float(min(retry.backoff.first * retry.backoff.factor ** min(earlier, 64), retry.backoff.most))


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"
