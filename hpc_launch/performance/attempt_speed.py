"""Collect the performance facts of an attempt: the watcher's samples and the start of the logs.

Bounded: reads the newest samples of each node and the head of each log, where NCCL and other libraries report their
choices.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from hpc_launch.base.files import read_json, without_waiting
from hpc_launch.performance.log_facts import LogFact, first_lines
from hpc_launch.performance.run_samples import Gpu, NodeSamples, RankSamples, Remark, RunFacts
from hpc_launch.performance.slow_communication import buckets, loader, nvlink, sockets
from hpc_launch.performance.slow_nodes import REASONS, stragglers, throttled
from hpc_launch.recover.diagnosis import Quote
from hpc_launch.run import hosts
from hpc_launch.run.layout import AttemptFolder
from hpc_launch.run.rank_logs import log_files
from hpc_launch.run.records import values

SAMPLES = 256 << 10
"""Bytes read from the end of a node's samples: about an hour with eight GPUs."""
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
    plan = _plan(attempt)
    start = read_json(attempt.start) or {}
    names = hosts.names(start.get("nodes"))
    nodes = tuple(_nodes(attempt, names))
    return RunFacts(
        nodes=nodes,
        lines=(*_lines(attempt, names), *_configured(attempt)),
        fabric=values.text(plan.get("fabric")),
        planned_nodes=values.whole(plan.get("nodes")) or len(nodes) or 1,
        processes_per_node=values.whole(plan.get("processes_per_node")) or 1,
    )


def _plan(attempt: AttemptFolder) -> Mapping[str, Any]:
    # An attempt that began by a requeue has no plan of its own: it runs the one before it.
    numbers = range(attempt.number, 0, -1)
    plans = (read_json(AttemptFolder(attempt.path.with_name(f"{number:03d}")).plan) for number in numbers)
    return next((plan for plan in plans if plan is not None), {})


def _nodes(attempt: AttemptFolder, names: tuple[str, ...]) -> Iterator[NodeSamples]:
    folder = attempt.path / "agent"
    with suppress(OSError):
        for path in sorted(folder.glob("node-*.jsonl"))[:MAX_NODES]:
            number = values.whole(path.stem.removeprefix("node-"))
            samples = list(_samples(path))
            if number is not None and samples:
                name = names[number] if number < len(names) else f"node {number}"
                # In a local run several "nodes" share the host's name.
                name = f"{name} (node {number})" if names.count(name) > 1 else name
                yield _node(name, samples, os.path.relpath(path, attempt.path))


def _samples(path: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError), open(path, "rb", opener=without_waiting) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - SAMPLES))
        for line in stream.read(SAMPLES).splitlines():
            with suppress(ValueError, RecursionError):
                data = json.loads(line) if b'"sample"' in line else None
                if isinstance(data, dict) and data.get("event") == "sample":
                    yield data


def _node(name: str, samples: list[dict[str, Any]], source: str) -> NodeSamples:
    places: dict[int, Counter[str]] = {}
    rates: dict[str, list[float]] = {}
    gpus: dict[int, list[Mapping[str, Any]]] = {}
    for sample in samples:
        for rank, counts in _items(sample.get("places")):
            if rank.isdecimal() and isinstance(counts, dict):
                whole = {str(place): values.whole(count) or 0 for place, count in counts.items()}
                places.setdefault(int(rank), Counter()).update(whole)
        for interface, both in _items(sample.get("net_bytes_s")):
            if isinstance(both, list):
                rates.setdefault(interface, []).append(sum(values.seconds(rate) or 0.0 for rate in both))
        for gpu in sample.get("gpus") or () if isinstance(sample.get("gpus"), list) else ():
            index = values.whole(gpu.get("index")) if isinstance(gpu, dict) else None
            if index is not None:
                gpus.setdefault(index, []).append(gpu)
    links = [values.whole(sample.get("nvlinks")) for sample in samples]
    return NodeSamples(
        name=name,
        ranks=tuple(_rank(rank, counts) for rank, counts in sorted(places.items())),
        gpus=tuple(_gpu(index, seen) for index, seen in sorted(gpus.items())),
        net={interface: median(seen) for interface, seen in rates.items()},
        nvlinks=next((count for count in reversed(links) if count is not None), None),
        source=source,
    )


def _rank(rank: int, counts: Counter[str]) -> RankSamples:
    total = sum(counts.values())
    return RankSamples(rank, total, {place: count / total for place, count in counts.items()} if total else {})


def _gpu(index: int, seen: list[Mapping[str, Any]]) -> Gpu:
    masks = [_mask(gpu.get("throttle")) for gpu in seen]
    return Gpu(
        index=index,
        samples=len(seen),
        util=_median(seen, "util"),
        mhz=_median(seen, "sm_mhz"),
        mem_mib=_median(seen, "mem_mib"),
        throttled={word: sum(bool(mask & bit) for mask in masks) / len(masks) for bit, word in REASONS.items()},
    )


def _median(seen: list[Mapping[str, Any]], key: str) -> float | None:
    known = [number for gpu in seen if (number := values.seconds(gpu.get(key))) is not None]
    return median(known) if known else None


def _mask(value: object) -> int:
    """Parse nvidia-smi's bit mask, such as `0x0000000000000004`."""
    try:
        return int(value, 16) if isinstance(value, str) else 0
    except ValueError:
        return 0


def _items(value: object) -> list[tuple[str, Any]]:
    return [(str(key), item) for key, item in value.items()] if isinstance(value, dict) else []


def _lines(attempt: AttemptFolder, names: tuple[str, ...]) -> Iterator[LogFact]:
    for log in log_files(attempt)[:MAX_LOGS]:
        node = names[log.node] if log.node is not None and log.node < len(names) else None
        name = os.path.relpath(log.path, attempt.path)
        with suppress(OSError), open(log.path, "rb") as stream:
            yield from first_lines(stream.read(HEAD), name, node=node, rank=log.rank)


def _configured(attempt: AttemptFolder) -> Iterator[LogFact]:
    """The bucket size in the DeepSpeed configuration that the script wrote to the attempt folder."""
    with suppress(OSError):
        for path in sorted(attempt.path.glob("*.json")):
            zero = (read_json(path) or {}).get("zero_optimization")
            size = values.seconds(zero.get("reduce_bucket_size")) if isinstance(zero, dict) else None
            if size is not None:
                quote = Quote(path.name, 0, f'"reduce_bucket_size": {size:.0f}')
                yield LogFact("zero_bucket", quote, value=size)
