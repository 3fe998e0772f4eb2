"""Types of the performance analysis: the facts that readers collect and the remarks that rules make."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.performance.log_facts import LineKind, LogFact

RemarkKind = Literal[
    "nvlink_unused", "plain_sockets", "node_behind", "small_buckets", "loader_starved", "gpus_idle", "clocks_throttled"
]

MIN_GPU_SAMPLES = 3
"""Minimum samples of a GPU: a single one may fall into an evaluation or a checkpoint."""
MIN_RANK_SAMPLES = 8
"""Minimum samples of a rank's wait place."""


class Gpu(Struct, frozen=True):
    """One GPU: medians over the samples, and the share of samples with each throttling reason."""

    index: int
    samples: int
    util: float | None = None
    mhz: float | None = None
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
    processes_per_node: int = 1

    def of(self, kind: LineKind, node: str | None = None) -> list[LogFact]:
        """The lines of this kind, optionally of one node."""
        return [line for line in self.lines if line.kind == kind and node in (None, line.node)]


class Remark(Struct, frozen=True):
    """One cause of a slowdown, where it was seen, and what to do."""

    kind: RemarkKind
    text: str
    todo: str
    node: str | None = None
    rank: int | None = None
    quotes: tuple[Quote, ...] = ()
