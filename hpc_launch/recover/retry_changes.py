"""The changes between two attempts, one step of a list at a time: smaller micro batch, more memory, longer, elsewhere.

What changes the training (precision, offloading, checkpointing of activations) is no step of the default lists: the
job file has to name it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from hpc_launch.spec.retry import RetryStep
from hpc_launch.spec.units import format_memory, format_time

STEPS = {
    "cuda_oom": (RetryStep(change="half_batch", times=10),),
    "host_oom": (RetryStep(memory="x1.5", times=3),),
}
"""What is tried where the job file names no steps."""


class BatchState(Struct, frozen=True):
    """Where the job file has the micro batch and the accumulation, by dotted keys, and their values."""

    micro_key: str
    micro: int
    accumulation_key: str | None = None
    """None where the training derives it from the global batch."""
    accumulation: int = 1


class ChangeFacts(Struct, frozen=True):
    """What the ended attempt asked for, as far as it is known, and what its site has."""

    batch: BatchState | None = None
    memory: int | None = None
    """MiB on each node; 0 is all of it, None not asked for."""
    node_memory: int | None = None
    time_s: int | None = None
    most_time_s: int | None = None
    nodes: int | None = None
    """None for an elastic run."""
    max_nodes: int | None = None
    spare_nodes: int | None = None
    """How many nodes of the queue the job can do without; None where the queue's size is not known."""
    queue: str | None = None
    excluded: tuple[str, ...] = ()


class JobChange(Struct, frozen=True):
    """A step as `--set` options, in words, and the steps used up with it."""

    sets: tuple[str, ...]
    words: str
    used: int


def next_change(kind: str, steps: Sequence[RetryStep] | None, used: int, facts: ChangeFacts) -> JobChange | None:
    """The first step after `used` that changes something; None where none is left."""
    chosen = tuple(steps or ()) or STEPS.get(kind, ())
    ladder = [step for step in chosen for _ in range(step.times)]
    for at, step in enumerate(ladder[used:], used + 1):
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


def _smaller(batch: BatchState) -> Iterator[tuple[str, str]]:
    """The micro batch divided by its smallest prime factor and the accumulation multiplied by it: 8 by 2, 9 by 3."""
    if batch.micro < 2:
        return
    part = next((n for n in range(2, math.isqrt(batch.micro) + 1) if batch.micro % n == 0), batch.micro)
    yield batch.micro_key, str(batch.micro // part)
    if batch.accumulation_key is not None:
        yield batch.accumulation_key, str(batch.accumulation * part)


def _memory(factor: str, facts: ChangeFacts) -> Iterator[tuple[str, str]]:
    if facts.memory is None:
        # How much it was given is not known; all of the node is more, unless it had that.
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
