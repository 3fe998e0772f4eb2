"""Facts that affect training speed: samples of GPUs and ranks, and lines of the logs; and the remarks that rules make.

NCCL reports its transports only with `NCCL_DEBUG=INFO`, PyTorch its bucket size with `TORCH_DISTRIBUTED_DEBUG=INFO`,
DeepSpeed always. Message texts: NCCL 2.20 to 2.28, aws-ofi-nccl 1.7 to 1.16, PyTorch 2.13 (c10d logger, DataLoader),
DeepSpeed 0.19.8 (stage_1_and_2.py, stage3.py), Lightning 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Quote

LineKind = Literal[
    "socket", "no_ib", "shm", "p2p", "nvlink", "p2p_off",
    "ddp_bucket", "ddp_total", "zero_bucket", "workers", "few_workers",
]  # fmt: skip


class LogFact(Struct, frozen=True):
    """The first line of its kind in a log; `value` is the number in it, in the unit given in `RULES`."""

    kind: LineKind
    quote: Quote
    node: str | None = None
    rank: int | None = None
    value: float | None = None


# Kind, keywords of which the line must contain one (a cheap pre-filter), pattern.
RULES: tuple[tuple[LineKind, str, re.Pattern[str]], ...] = (
    (
        "socket",
        "network Socket|NET/Socket|rovider is",
        re.compile(
            r"NCCL INFO (?:Using network Socket\b|Channel .{1,80} via NET/Socket/)"
            r"|NET/OFI Selected [Pp]rovider is (?:sockets|tcp)\b"
        ),
    ),
    ("no_ib", "NET/IB|libibverbs", re.compile(r"NET/IB ?: No device found|Failed to open libibverbs")),
    ("shm", "via SHM", re.compile(r"Channel \d.{1,80} via SHM/")),
    ("p2p", "via P2P", re.compile(r"Channel \d.{1,80} via P2P/")),
    ("nvlink", "NVL[", re.compile(r"NCCL INFO [ +]{0,40}NVL\[ ?\d")),
    (
        "p2p_off",
        "P2P",
        re.compile(r"P2P is disabled between NVLINK connected GPUs|NCCL_P2P_DISABLE set by environment to 1"),
    ),
    ("ddp_bucket", "bucket_cap_bytes", re.compile(r"\bbucket_cap_bytes: (\d{1,15})\s*$")),  # bytes
    ("ddp_total", "total_parameter", re.compile(r"\btotal_parameter_size_bytes: (\d{1,15})\s*$")),  # bytes
    ("zero_bucket", "educe bucket size", re.compile(r"\bReduce bucket size (\d{1,15})\b")),  # elements
    (
        "workers",
        "This DataLoader",
        re.compile(r"This DataLoader will create (\d{1,6}) worker processes in total\. Our suggested max"),
    ),
    ("few_workers", "many workers", re.compile(r"does not have many workers which may be a bottleneck")),
)
_RANK = re.compile(r"\[rank(\d{1,9})\]:")
MAX_LINE = 2000
"""Maximum bytes of a line that are matched."""
MAX_CANDIDATES = 200
"""Maximum number of lines with a keyword that are matched for each kind."""


def first_lines(data: bytes, file: str, *, node: str | None = None, rank: int | None = None) -> Iterator[LogFact]:
    """The first line of each kind in the head of a log. Not split into lines, since few contain a keyword."""
    for kind, keywords, pattern in RULES:
        hits = [at for keyword in keywords.split("|") if (at := _first(data, keyword.encode(), pattern)) is not None]
        if hits:
            text = _text(data, min(hits))
            match, own = pattern.search(text), _RANK.match(text)
            value = float(match[1]) if match is not None and match.groups() else None
            quote = Quote(file, data.count(b"\n", 0, min(hits)) + 1, text.strip())
            yield LogFact(kind, quote, node, int(own[1]) if own else rank, value)


def _first(data: bytes, keyword: bytes, pattern: re.Pattern[str]) -> int | None:
    """Offset of the first line that contains the keyword and matches the pattern."""
    at = 0
    for _ in range(MAX_CANDIDATES):
        hit = data.find(keyword, at)
        if hit < 0:
            return None
        begin = data.rfind(b"\n", 0, hit) + 1
        if pattern.search(_text(data, begin)):
            return begin
        end = data.find(b"\n", hit)
        if end < 0:
            return None
        at = end + 1
    return None


def _text(data: bytes, begin: int) -> str:
    return data[begin : begin + MAX_LINE].partition(b"\n")[0].decode("utf-8", errors="replace")


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
