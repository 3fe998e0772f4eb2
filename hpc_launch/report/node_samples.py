"""What the watchers sampled over the whole run, for its charts: use and memory of each rank, and use of each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean

from hpc_launch.base.json_records import read_record
from hpc_launch.performance.slow_training import attempt_remarks
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.node_records import WatcherSample, spread_samples
from hpc_launch.runs.records.submission import ScriptRecord

MOST_NODES = MOST_ROWS = 64
MOST_ATTEMPTS = 20

Rows = dict[str, list[tuple[float, float]]]
"""By name: seconds since the run was created, and value."""


@dataclass
class Sampled:
    """Samples by rank, or by GPU where the node has not one for each rank; without GPUs only of the CPUs."""

    gpu_use: Rows = field(default_factory=dict)
    """Percent."""
    gpu_gib: Rows = field(default_factory=dict)
    cpu_use: Rows = field(default_factory=dict)
    """CPUs in use."""
    gib: Rows = field(default_factory=dict)
    """Memory of the processes."""
    nodes: Rows = field(default_factory=dict)
    """Mean use of the GPUs in percent; without GPUs, the CPUs that the ranks use."""
    stragglers: set[str] = field(default_factory=set)


def sampled(attempts: Sequence[AttemptFolder], begin: float) -> Sampled:
    """The samples of the newest attempts; times since `begin`. Never raises."""
    result = Sampled()
    for attempt in attempts[-MOST_ATTEMPTS:]:
        names = (read_record(attempt.start, ScriptRecord) or ScriptRecord()).node_names
        for number, path in islice(attempt.watcher_files(), MOST_NODES):
            name = names[number] if number < len(names) else f"node {number}"
            name = f"{name} (node {number})" if names.count(name) > 1 else name
            before: WatcherSample | None = None
            for sample in spread_samples(path):
                _add(result, name, sample, before, begin)
                before = sample
        slow = (one.node for one in attempt_remarks(attempt) if one.kind == "node_behind")
        result.stragglers.update(filter(None, slow))
    return result


def _add(result: Sampled, node: str, sample: WatcherSample, before: WatcherSample | None, begin: float) -> None:
    at, ranks = sample.t - begin, sorted((rank for rank in sample.rss_mib if rank.isdecimal()), key=int)

    def put(rows: Rows, name: str, value: float | None) -> None:
        if value is not None and (name in rows or len(rows) < MOST_ROWS):
            rows.setdefault(name, []).append((at, value))

    for place, gpu in enumerate(sorted(sample.gpus, key=lambda gpu: gpu.index)):
        own = len(ranks) == len(sample.gpus)
        name = f"rank {ranks[place]}, {node}" if own else f"GPU {gpu.index}, {node}"
        put(result.gpu_use, name, gpu.util)
        put(result.gpu_gib, name, gpu.mem_mib / 1024 if gpu.mem_mib is not None else None)
    cpus: list[float] = []
    for rank in ranks:
        name, used = f"rank {rank}, {node}", sample.cpu_s.get(rank)
        put(result.gib, name, sample.rss_mib[rank] / 1024)
        earlier = before.cpu_s.get(rank) if before is not None else None
        if used is not None and before is not None and earlier is not None and used >= earlier and sample.t > before.t:
            cpus.append((used - earlier) / (sample.t - before.t))
            put(result.cpu_use, name, cpus[-1])
    uses = [gpu.util for gpu in sample.gpus if gpu.util is not None]
    put(result.nodes, node, fmean(uses) if uses else sum(cpus) if cpus else None)
