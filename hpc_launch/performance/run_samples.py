"""What is known of how a training does, and what is said of it: the types between the readers and the rules."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_launch.performance.log_facts import Kind as LineKind
from hpc_launch.performance.log_facts import LogFact
from hpc_launch.recover.diagnosis import Quote

Remarked = Literal[
    "nvlink_unused", "plain_sockets", "node_behind", "small_buckets", "loader_starved", "gpus_idle", "clocks_throttled"
]

FEWEST_SAMPLES = 3
"""Samples of a GPU below which nothing is said of it: one may fall into an evaluation or a checkpoint."""
FEWEST_LOOKS = 8
"""Looks at where a rank stands below which nothing is said of it."""


class Gpu(Struct, frozen=True):
    """One GPU over the samples: medians, and the share of samples with each throttling reason."""

    index: int
    samples: int
    util: float | None = None
    mhz: float | None = None
    mem_mib: float | None = None
    throttled: dict[str, float] = {}


class RankSamples(Struct, frozen=True):
    """Where the main thread of a rank stood: the share of its looks by the kernel's name of the place."""

    rank: int
    looks: int
    places: dict[str, float] = {}

    def share(self, *words: str) -> float:
        """Of the looks at which it stood at a place with one of these words in its name."""
        return sum(share for place, share in self.places.items() if any(word in place for word in words))


class NodeSamples(Struct, frozen=True):
    """One node over the samples; `net` is the median of bytes a second, both ways together, by interface."""

    name: str
    ranks: tuple[RankSamples, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    net: dict[str, float] = {}
    nvlinks: int | None = None
    source: str = ""
    """The file with the samples."""

    @property
    def used(self) -> list[Gpu]:
        """The GPUs that the training uses and of which enough is known."""
        enough = [gpu for gpu in self.gpus if gpu.samples >= FEWEST_SAMPLES and gpu.util is not None]
        return [gpu for gpu in enough if (gpu.util or 0) > 0 or (gpu.mem_mib or 0) >= 1024]

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """Where the samples stand."""
        return (Quote(self.source, 0, "samples of the watcher"),) if self.source else ()


class RunFacts(Struct, frozen=True):
    """All that is known of how a training does."""

    nodes: tuple[NodeSamples, ...] = ()
    lines: tuple[LogFact, ...] = ()
    fabric: str | None = None
    """The family, by the site's profile."""
    planned_nodes: int = 1
    processes_per_node: int = 1

    def of(self, kind: LineKind, node: str | None = None) -> list[LogFact]:
        """The lines of this kind, of one node if one is named."""
        return [line for line in self.lines if line.kind == kind and node in (None, line.node)]


class Remark(Struct, frozen=True):
    """One reason why it may be slow, where it was seen, and what to do about it."""

    kind: Remarked
    text: str
    todo: str
    node: str | None = None
    rank: int | None = None
    quotes: tuple[Quote, ...] = ()
