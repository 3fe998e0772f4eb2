"""Facts that affect training speed: samples of GPUs and ranks, and lines of the logs; and the remarks that rules make.

NCCL reports its transports only with `NCCL_DEBUG=INFO`, PyTorch its bucket size with `TORCH_DISTRIBUTED_DEBUG=INFO`,
DeepSpeed always. Message texts: NCCL 2.20 to 2.28, aws-ofi-nccl 1.7 to 1.16, PyTorch 2.13 (c10d logger, DataLoader),
DeepSpeed 0.19.8 (stage_1_and_2.py, stage3.py), Lightning 2.

Which step an attempt reached when: the growth of its log, as the watcher of node 0 recorded it, and the steps in it.

A log may have many gigabytes, so only a few places are read: a step is looked up before the size that the log had at a
time, and the times of given steps are found by bisection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.plan_record import PlanRecord, progress_patterns
from hpc_launch.runs.status.progress_reader import first_step, integer, newest_step, number, tail_lines

WINDOW = 32 << 10
"""Bytes before a place of the log that are searched for a step."""
BACK = 4
"""Number of earlier places that are searched where one shows no step."""

Growth = tuple[tuple[float, int], ...]
"""When the log had which size; times are seconds since the epoch, sizes bytes."""


class StepCurve:
    """The steps of one attempt by time. Reads the log when it is asked; never raises."""

    def __init__(
        self,
        attempt: AttemptFolder,
        plan: PlanRecord,
        growth: Iterable[tuple[float, int]],
        saves: Iterable[tuple[float, float]] = (),
    ) -> None:
        self._attempt = attempt
        self._patterns = progress_patterns(plan)
        self._steps: dict[int, int | None] = {}
        self._losses: dict[int, float] = {}
        self._most = 0
        self.growth: Growth = _ascending(growth)
        self.saves = tuple(saves)
        """From when to when rank 0 saved."""

    @property
    def has_steps(self) -> bool:
        """Whether the job says how its log shows steps."""
        return "step" in self._patterns

    def step(self, at: int) -> int | None:
        """The newest step when the log had grown for the time `at`."""
        for place in range(at, max(-1, at - BACK), -1):
            step = self._read(place)
            if step is not None:
                return step
        return None

    @property
    def last(self) -> int | None:
        """The newest step of all."""
        return self.step(len(self.growth) - 1) if self.growth else None

    def first(self) -> float | None:
        """When the first step began, as far as known: by the first line with a step and the pace of the next ones."""
        if not self.growth or self.last is None:
            return None
        at = self._bisect(0)
        time, step = self.growth[at][0], self.step(at)
        earliest, head = self.growth[at - 1][0] if at else None, first_step(self._attempt)
        if earliest is None or step is None or head is None or at + 1 >= len(self.growth):
            return time
        later = self.step(at + 1)
        pace = (self.growth[at + 1][0] - time) / (later - step) if later is not None and later > step else 0.0
        return max(earliest, time - pace * (step - head + 1))

    def reached(self, step: int, began: float | None = None) -> float | None:
        """When this step was shown, interpolated between two looks at the log; None where it was not.

        `began`: when the first step began.
        """
        last = self.last
        if last is None or last < step:
            return None
        at = self._bisect(step)
        time, here = self.growth[at][0], self.step(at)
        earlier, before = (self.growth[at - 1][0], self.step(at - 1)) if at else (None, None)
        if before is None and began is not None:
            head = first_step(self._attempt)
            earlier, before = began, head - 1 if head is not None else None
        if earlier is None or before is None or here is None or here <= before or step <= before:
            return time
        return earlier + (time - earlier) * (step - before) / (here - before)

    def points(self, most: int) -> list[tuple[float, int]]:
        """At most so many points of the curve: time and step."""
        found = [(self.growth[at][0], self.step(at)) for at in _spread(len(self.growth), most)]
        return [(time, step) for time, step in found if step is not None]

    def losses(self, most: int) -> list[tuple[int, float]]:
        """At most so many steps with their loss, by lines that show both. The places that `points` looked at count."""
        steps = sorted(self._losses)
        return [(steps[at], self._losses[steps[at]]) for at in _spread(len(steps), most)]

    def _bisect(self, step: int) -> int:
        """The first point at which this step was reached; the last one reached it."""
        low, high = 0, len(self.growth) - 1
        while low < high:
            middle = (low + high) // 2
            here = self.step(middle)
            if here is not None and here >= step:
                high = middle
            else:
                low = middle + 1
        return low

    def _read(self, at: int) -> int | None:
        if at not in self._steps:
            size, over = self.growth[at][1], at == len(self.growth) - 1
            try:
                lines = tail_lines(self._attempt.first_log, WINDOW, before=size, over=over)
            except OSError:
                lines = []
            self._steps[at] = self._search(lines)
        return self._steps[at]

    def _search(self, lines: list[str]) -> int | None:
        steps, losses = self._patterns.get("step"), self._patterns.get("loss")
        found = [(match, line) for line in lines if (match := steps.search(line))] if steps is not None else []
        newest = newest_step([match for match, _ in found], self._most)
        self._most = max([self._most, *(integer(match, 2) or 0 for match, _ in found if match.re.groups > 1)])
        for match, line in found if losses is not None else ():
            step, loss = integer(match, 1), losses.search(line) if losses is not None else None
            value = number(loss) if loss is not None else None
            if step is not None and value is not None and (match.re.groups < 2 or integer(match, 2) == self._most):
                self._losses[step] = value
        return integer(newest, 1) if newest is not None else None


def _spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


def _ascending(growth: Iterable[tuple[float, int]]) -> Growth:
    """The points by time, without those at which the log had not grown: it was rewritten, or clocks differ."""
    points = sorted(growth)
    return tuple(points[:1] + [new for old, new in pairwise(points) if new[1] > old[1]])


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
