"""Collect the performance facts of an attempt: the watcher's samples and the start of the logs.

Bounded: reads the newest samples of each node and the head of each log, where NCCL and other libraries report their
choices.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from statistics import median

from msgspec import Struct

from hpc_launch.base.files import open_regular
from hpc_launch.base.json_records import read_record
from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.performance.run_samples import Gpu, LogFact, NodeSamples, RankSamples, Remark, RunFacts, first_lines
from hpc_launch.performance.slow_training import REASONS, buckets, loader, nvlink, sockets, stragglers, throttled
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.rank_logs import log_files
from hpc_launch.runs.records.node_records import GpuSample, WatcherSample, watcher_samples
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.records.submission import ScriptRecord

HEAD = 2 << 20
"""Bytes read from the start of a log."""
MAX_LOGS = 64
MAX_NODES = 1024


def attempt_remarks(attempt: AttemptFolder) -> tuple[Remark, ...]:
    """The causes of a slowdown of this attempt. Never raises; unreadable data is ignored."""
    return remarks(gather(attempt))


def remarks(facts: RunFacts) -> tuple[Remark, ...]:
    """The causes of a slowdown, most severe first. Each remark needs evidence; without facts there are none. Pure."""
    slow = tuple(stragglers(facts))
    return (*slow, *throttled(facts), *sockets(facts), *nvlink(facts), *loader(facts, slow), *buckets(facts))


def gather(attempt: AttemptFolder) -> RunFacts:
    """Collect the performance facts of an attempt. Never raises."""
    plan = plan_of(attempt) or PlanRecord()
    start = read_record(attempt.start, ScriptRecord) or ScriptRecord()
    names = start.node_names
    nodes = tuple(_nodes(attempt, names))
    return RunFacts(
        nodes=nodes,
        lines=(*_lines(attempt, names), *_configured(attempt)),
        fabric=plan.fabric,
        planned_nodes=plan.nodes or len(nodes) or 1,
        processes_per_node=plan.processes_per_node or 1,
    )


def _nodes(attempt: AttemptFolder, names: tuple[str, ...]) -> Iterator[NodeSamples]:
    for number, path in islice(attempt.watcher_files(), MAX_NODES):
        samples = list(watcher_samples(path))
        if samples:
            name = names[number] if number < len(names) else f"node {number}"
            # In a local run several "nodes" share the host's name.
            name = f"{name} (node {number})" if names.count(name) > 1 else name
            yield _node(name, samples, os.path.relpath(path, attempt.path))


def _node(name: str, samples: list[WatcherSample], source: str) -> NodeSamples:
    places: dict[int, Counter[str]] = {}
    rates: dict[str, list[float]] = {}
    gpus: dict[int, list[GpuSample]] = {}
    for sample in samples[len(samples) // 2 :]:  # the older half may be the start, when ranks wait at other places
        for rank, counts in sample.places.items():
            if rank.isdecimal():
                places.setdefault(int(rank), Counter()).update(counts)
    for sample in samples:
        for interface, both in sample.net_bytes_s.items():
            rates.setdefault(interface, []).append(sum(both))
        for gpu in sample.gpus:
            gpus.setdefault(gpu.index, []).append(gpu)
    return NodeSamples(
        name=name,
        ranks=tuple(_rank(rank, counts) for rank, counts in sorted(places.items())),
        gpus=tuple(_gpu(index, seen) for index, seen in sorted(gpus.items())),
        net={interface: median(seen) for interface, seen in rates.items()},
        nvlinks=next((sample.nvlinks for sample in reversed(samples) if sample.nvlinks is not None), None),
        source=source,
    )


def _rank(rank: int, counts: Counter[str]) -> RankSamples:
    total = sum(counts.values())
    return RankSamples(rank, total, {place: count / total for place, count in counts.items()} if total else {})


def _gpu(index: int, seen: list[GpuSample]) -> Gpu:
    masks = [_mask(gpu.throttle) for gpu in seen]
    return Gpu(
        index=index,
        samples=len(seen),
        util=_median(gpu.util for gpu in seen),
        mhz=_median(gpu.sm_mhz for gpu in seen),
        mem_mib=_median(gpu.mem_mib for gpu in seen),
        throttled={word: sum(bool(mask & bit) for mask in masks) / len(masks) for bit, word in REASONS.items()},
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _mask(text: str | None) -> int:
    """Parse nvidia-smi's bit mask, such as `0x0000000000000004`."""
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0


def _lines(attempt: AttemptFolder, names: tuple[str, ...]) -> Iterator[LogFact]:
    for log in log_files(attempt)[:MAX_LOGS]:
        node = names[log.node] if log.node is not None and log.node < len(names) else None
        name = os.path.relpath(log.path, attempt.path)
        with suppress(OSError), open_regular(log.path) as stream:
            yield from first_lines(stream.read(HEAD), name, node=node, rank=log.rank)


class _ZeroOptimization(Struct, frozen=True):
    reduce_bucket_size: float | None = None


class _DeepSpeedConfig(Struct, frozen=True):
    zero_optimization: _ZeroOptimization = _ZeroOptimization()


def _configured(attempt: AttemptFolder) -> Iterator[LogFact]:
    """The bucket size in DeepSpeed's configuration, which the script wrote to the attempt's folder."""
    for path in attempt.configurations():
        config = read_record(path, _DeepSpeedConfig) or _DeepSpeedConfig()
        size = config.zero_optimization.reduce_bucket_size
        if size is not None:
            quote = Quote(path.name, 0, f'"reduce_bucket_size": {size:.0f}')
            yield LogFact("zero_bucket", quote, value=size)
