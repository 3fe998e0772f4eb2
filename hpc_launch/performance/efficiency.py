"""What a job used of what it requested, by the newest samples of its watchers, and what to change.

None is unknown, and then nothing is recommended.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from msgspec import Struct, to_builtins

from hpc_launch.agent.notify_event import MOST_NODES, SAMPLE_TAIL, uses_of
from hpc_launch.performance.slow_training import attempt_remarks
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.node_records import watcher_samples
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.status.run_status import RunStatus

LITTLE = 0.25
"""Whoever uses less than this part of the memory or the time requested too much."""
MARGIN = 1.3
"""Recommended memory and time, relative to what was used."""
LEAST_GIB, LEAST_S = 8.0, 1800.0
"""Of smaller requests nothing is recommended: they cost nobody anything."""
MOST_READ, MOST_EXPLAINED = 4 << 20, 16
"""Bytes of samples that are read, and nodes of which logs are read for a cause: `status` must not take seconds."""


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


def cpus_between(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> float:
    """The CPUs in use between two samples of the CPU time of each process."""
    used = sum(max(0.0, spent - before.get(process, 0.0)) for process, spent in after.items())
    return used / seconds if seconds > 0 else 0.0


def run_efficiency(status: RunStatus) -> Efficiency:
    """The use of a run's newest attempt, as far as it is known, by at most MOST_NODES of its nodes. Never raises."""
    if not status.attempts:
        return Efficiency()
    last = status.attempts[-1]
    attempt = AttemptFolder(last.folder)
    plan = plan_of(attempt) or PlanRecord()
    files = [path for _, path in attempt.watcher_files()]
    files, count = files[:: 1 + len(files) // (MOST_NODES + 1)], len(files)  # evenly spread
    nodes = [list(watcher_samples(path, min(SAMPLE_TAIL, MOST_READ // len(files)))) for path in files]
    gpus = (((at, gpu.index), gpu.util) for at, node in enumerate(nodes) for one in node for gpu in one.gpus)
    uses = uses_of(gpus)
    busy = [[sample for sample in node if sample.cpu_s] for node in nodes]  # before and after, no rank is there
    cpus = [cpus_between(node[0].cpu_s, node[-1].cpu_s, node[-1].t - node[0].t) for node in busy if len(node) > 1]
    policy, remarks = plan.recovery, attempt_remarks(attempt) if uses and count <= MOST_EXPLAINED else ()
    asked = policy.memory or policy.node_memory if policy is not None and policy.memory is not None else None
    return Efficiency(
        gpu_use=fmean(map(fmean, uses)) / 100 if uses else None,
        gpus=len(uses),
        idle_gpus=sum(not any(use) for use in uses),
        memory=max((sum(sample.rss_mib.values()) / 1024 for node in nodes for sample in node), default=None),
        memory_requested=asked / 1024 if asked else None,
        cpus=sum(cpus) if cpus else None,
        cpus_requested=plan.cpus_per_node * len(cpus) if plan.cpus_per_node else None,
        time=last.ended - last.started if last.ended is not None and last.started is not None else None,
        time_requested=plan.time_limit_s,
        completed=status.state == "COMPLETED",
        cause=f"{remarks[0].text}: {remarks[0].todo}" if remarks else "",
    )
