"""The changes of RETRY_CHANGED, one step of a list per attempt: smaller micro batch, more memory, longer, elsewhere.

What changes the training (precision, offloading, checkpointing of activations) is no step of the default lists: the
job file has to name it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from hpc_launch.job.retry import RetryStep
from hpc_launch.job.units import format_memory, format_time

STEPS = {
    "cuda_oom": (RetryStep(change="half_batch", times=10),),
    "host_oom": (RetryStep(memory="x1.5", times=3),),
}
"""The steps if the job file names none."""


class BatchState(Struct, frozen=True):
    """The dotted keys of micro batch and accumulation in the job file, and their values."""

    micro_key: str
    micro: int
    accumulation_key: str | None = None
    """None if the training derives it from the global batch."""
    accumulation: int = 1


class ChangeFacts(Struct, frozen=True):
    """The requests of the ended attempt, as far as known, and the limits of its site."""

    batch: BatchState | None = None
    memory: int | None = None
    """MiB per node; 0 means all of it, None not requested."""
    node_memory: int | None = None
    time_s: int | None = None
    most_time_s: int | None = None
    nodes: int | None = None
    """None for an elastic run."""
    max_nodes: int | None = None
    spare_nodes: int | None = None
    """How many nodes of the queue the job can do without; None if the size of the queue is unknown."""
    queue: str | None = None
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


def _smaller(batch: BatchState) -> Iterator[tuple[str, str]]:
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
