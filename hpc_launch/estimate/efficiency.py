"""What a job used of what it requested, and what to change. Pure; None is unknown, and then nothing is recommended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, to_builtins

LITTLE = 0.25
"""Whoever uses less than this part of the memory or the time requested too much."""
MARGIN = 1.3
"""Recommended memory and time, relative to what was used."""
LEAST_GIB, LEAST_S = 8.0, 1800.0
"""Of smaller requests nothing is recommended: they cost nobody anything."""


class Efficiency(Struct, frozen=True, kw_only=True):
    """Use of a job. Memory is that of the processes, in GiB on the node with the most; times are seconds."""

    gpu_use: float | None = None
    """Mean over the GPUs, from 0 to 1."""
    gpus: int = 0
    idle_gpus: int = 0
    """GPUs that were idle in all samples."""
    memory: float | None = None
    memory_requested: float | None = None
    cpus: float | None = None
    """CPUs in use, on all nodes."""
    cpus_requested: int | None = None
    time: float | None = None
    """Of a job that ended."""
    time_requested: int | None = None
    completed: bool = False
    cause: str = ""
    """What the samples and the logs show to slow the training down, and what to do."""

    def as_json(self) -> dict[str, Any]:
        """`efficiency` of `list --json` (docs/reference/json.md)."""
        return {**to_builtins(self), "advice": self.advice}

    @property
    def order(self) -> tuple[int, float]:
        """Idle GPUs first, then the least used ones."""
        return -self.idle_gpus, 2.0 if self.gpu_use is None else self.gpu_use

    @property
    def advice(self) -> str:
        """What to change, in one sentence; '' where nothing measured supports a recommendation."""
        if self.idle_gpus:
            some = f"{self.idle_gpus} of {self.gpus} GPUs were idle in all samples"
            return f"{some}: request fewer, or start a process for each"
        if self.cause:
            return self.cause
        memory, asked = self.memory if self.completed else None, self.memory_requested
        if memory is not None and asked is not None and asked >= LEAST_GIB and memory < LITTLE * asked:
            return f"request {max(1, round(MARGIN * memory))} GiB of memory per node instead of {asked:.0f} GiB"
        time, limit = self.time if self.completed else None, self.time_requested
        if time is not None and limit is not None and limit >= LEAST_S and time < LITTLE * limit:
            return f"request {MARGIN * time / 60:.0f} minutes instead of {limit / 60:.0f}: shorter jobs start earlier"
        return ""


def uses_by_gpu(samples: Iterable[tuple[int, float | None]], least: int = 3) -> list[list[float]]:
    """The sampled use of each GPU that has at least `least` samples, from index and use."""
    uses: dict[int, list[float]] = {}
    for index, use in samples:
        if use is not None:
            uses.setdefault(index, []).append(use)
    return [use for use in uses.values() if len(use) >= least]


def cpus_between(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> float:
    """The CPUs in use between two samples of the CPU time of each process."""
    used = sum(max(0.0, spent - before.get(process, 0.0)) for process, spent in after.items())
    return used / seconds if seconds > 0 else 0.0
