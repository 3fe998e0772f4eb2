"""What affects the speed of an attempt: samples of its GPUs and ranks, and lines of its logs. Bounded.

NCCL reports its transports only with `NCCL_DEBUG=INFO`. Message texts: NCCL 2.20 to 2.28, aws-ofi-nccl 1.7 to 1.16,
PyTorch 2.13 (DataLoader).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from statistics import median
from typing import Literal

from msgspec import Struct

from hpc_launch.base.files import open_regular
from hpc_launch.base.json_records import read_record
from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.rank_logs import log_files
from hpc_launch.runs.records.node_records import GpuSample, WatcherSample, watcher_samples
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.records.submission import ScriptRecord

HEAD = 2 << 20
"""Bytes read from the start of a log, where libraries report their choices."""
MAX_LOGS = 64
MAX_NODES = 1024
MAX_LINE = 2000
"""Bytes of a line that are kept."""

LineKind = Literal["socket", "no_ib", "shm", "p2p", "nvlink", "p2p_off", "workers"]

PATTERNS: tuple[tuple[LineKind, re.Pattern[bytes]], ...] = (
    ("socket", re.compile(rb"NCCL INFO Using network Socket\b")),
    ("socket", re.compile(rb"NCCL INFO Channel [^\n]{1,80} via NET/Socket/")),
    ("socket", re.compile(rb"NET/OFI Selected [Pp]rovider is (?:sockets|tcp)\b")),
    ("no_ib", re.compile(rb"NET/IB ?: No device found")),
    ("no_ib", re.compile(rb"Failed to open libibverbs")),
    ("shm", re.compile(rb"Channel \d[^\n]{1,80} via SHM/")),
    ("p2p", re.compile(rb"Channel \d[^\n]{1,80} via P2P/")),
    ("nvlink", re.compile(rb"NCCL INFO [ +]{0,40}NVL\[ ?\d")),
    ("p2p_off", re.compile(rb"P2P is disabled between NVLINK connected GPUs")),
    ("p2p_off", re.compile(rb"NCCL_P2P_DISABLE set by environment to 1")),
    ("workers", re.compile(rb"This DataLoader will create \d{1,6} worker processes in total\. Our suggested max")),
)
"""Each begins with literal text, which `re` finds fast."""
_RANK = re.compile(r"\[rank(\d{1,9})\]:")

REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of `clocks_throttle_reasons.active` (nvml.h, nvmlClocksThrottleReason…) that slow down a busy GPU. Excludes the
power cap (0x4), which is normal under full load."""

MIN_GPU_SAMPLES = 3
"""Minimum samples of a GPU: a single one may fall into an evaluation or a checkpoint."""


class LogFact(Struct, frozen=True):
    """The first line of its kind in a log."""

    kind: LineKind
    quote: Quote
    node: str | None = None
    rank: int | None = None


def first_lines(data: bytes, file: str, *, node: str | None = None, rank: int | None = None) -> Iterator[LogFact]:
    """The first line of each kind in the head of a log."""
    found: dict[LineKind, int] = {}
    for kind, pattern in PATTERNS:
        match = pattern.search(data)
        if match is not None:
            found[kind] = min(match.start(), found.get(kind, len(data)))
    for kind, at in found.items():
        begin = data.rfind(b"\n", 0, at) + 1
        text = data[begin : begin + MAX_LINE].partition(b"\n")[0].decode("utf-8", errors="replace")
        own = _RANK.match(text)
        quote = Quote(file, data.count(b"\n", 0, at) + 1, text.strip())
        yield LogFact(kind, quote, node, int(own[1]) if own else rank)


class Gpu(Struct, frozen=True):
    """One GPU: medians over the samples, and the share of samples with each throttling reason."""

    index: int
    samples: int
    util: float | None = None
    mem_mib: float | None = None
    throttled: dict[str, float] = {}


class RankSamples(Struct, frozen=True):
    """What the main thread of a rank waits in: the share of samples by the kernel's name of the place (wchan)."""

    rank: int
    count: int
    places: dict[str, float] = {}

    def share(self, *names: str) -> float:
        """The share of samples at places whose name contains one of `names`."""
        return sum(share for place, share in self.places.items() if any(name in place for name in names))


class NodeSamples(Struct, frozen=True):
    """One node; `net` is the median traffic of each interface in bytes per second, both directions together."""

    name: str
    ranks: tuple[RankSamples, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    net: dict[str, float] = {}
    nvlinks: int | None = None
    source: str = ""
    """The file with the samples."""

    @property
    def used(self) -> list[Gpu]:
        """The GPUs that the training uses, if they have enough samples."""
        enough = [gpu for gpu in self.gpus if gpu.samples >= MIN_GPU_SAMPLES and gpu.util is not None]
        return [gpu for gpu in enough if (gpu.util or 0) > 0 or (gpu.mem_mib or 0) >= 1024]

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """A quote that names the file of the samples."""
        return (Quote(self.source, 0, "samples of the watcher"),) if self.source else ()


class RunFacts(Struct, frozen=True):
    """All performance facts of an attempt."""

    nodes: tuple[NodeSamples, ...] = ()
    lines: tuple[LogFact, ...] = ()
    fabric: str | None = None
    """Network family from the site profile."""
    planned_nodes: int = 1

    def of(self, kind: LineKind, node: str | None = None) -> list[LogFact]:
        """The lines of this kind, optionally of one node."""
        return [line for line in self.lines if line.kind == kind and node in (None, line.node)]


def gather(attempt: AttemptFolder) -> RunFacts:
    """Collect the performance facts of an attempt. Never raises."""
    plan = plan_of(attempt) or PlanRecord()
    start = read_record(attempt.start, ScriptRecord) or ScriptRecord()
    names = start.node_names
    nodes = tuple(_nodes(attempt, names))
    return RunFacts(
        nodes=nodes,
        lines=tuple(_lines(attempt, names)),
        fabric=plan.fabric,
        planned_nodes=plan.nodes or len(nodes) or 1,
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
        ranks=tuple(
            RankSamples(rank, total, {place: count / total for place, count in counts.items()})
            for rank, counts in sorted(places.items())
            if (total := sum(counts.values()))
        ),
        gpus=tuple(_gpu(index, seen) for index, seen in sorted(gpus.items())),
        net={interface: median(seen) for interface, seen in rates.items()},
        nvlinks=next((sample.nvlinks for sample in reversed(samples) if sample.nvlinks is not None), None),
        source=source,
    )


def _gpu(index: int, seen: list[GpuSample]) -> Gpu:
    masks = [_mask(gpu.throttle) for gpu in seen]
    return Gpu(
        index=index,
        samples=len(seen),
        util=_median(gpu.util for gpu in seen),
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
