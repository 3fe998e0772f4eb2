"""What the nodes of an attempt write: events and samples of the watcher, hang reports, and the node check.

agent/ is written by the watcher that runs on each node (agent/watch.py), node-check.json by the first node before the
training starts.

bench.json: bandwidths that `doctor --bench` measured (agent/bench.py), and the earlier ones of a site.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, MsgspecError, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from hpc_launch.agent.notify_event import SAMPLE_TAIL
from hpc_launch.base.files import make_private, open_regular, read_tail, state_folder
from hpc_launch.base.json_records import file_lines, line_record, read_record, write_record
from hpc_launch.runs.layout import AttemptFolder

MOST_KEPT = 200
"""Earlier measurements of a site that are compared."""


class BenchRecord(Struct, frozen=True, kw_only=True):
    """One measurement. Bandwidths are bus bandwidths in GB/s (10**9 bytes), as nccl-tests define them."""

    nodes: tuple[str, ...]
    per_node: int
    """Processes per node: of the node with the most."""
    slots: tuple[int, ...] = ()
    """Processes of each node where they differ."""
    backend: str
    """`nccl` or `gloo`."""
    tool: str = ""
    """What measured the collectives: the version of PyTorch."""
    curves: dict[str, tuple[tuple[int, float, float], ...]] = {}
    """(bytes, seconds, bandwidth) by collective."""
    not_measured: dict[str, str] = {}
    site: str | None = None
    run: str | None = None
    time: float | None = None

    @property
    def shape(self) -> tuple[tuple[int, ...], str]:
        """Processes of each node, and the backend. Measurements of the same shape can be compared."""
        return self.slots or (self.per_node,) * len(self.nodes), self.backend


def bench_folder(site: str) -> Path:
    """The user's folder for the measurements of a site."""
    return state_folder() / "bench" / site.replace("/", "_")


def store_bench(record: BenchRecord, site: str, run: str, when: float) -> Path:
    """Keep a measurement for the next comparison; returns its file. Raises OSError."""
    path = make_private(bench_folder(site)) / f"{run}.json"
    write_record(path, replace(record, site=site, run=run, time=when))
    return path


def previous_bench(record: BenchRecord, site: str) -> BenchRecord | None:
    """The newest earlier measurement of the same shape."""
    found: list[BenchRecord] = []
    with suppress(OSError):
        paths = sorted(bench_folder(site).glob("*.json"), key=lambda path: path.stat().st_mtime)
        found += filter(None, (read_record(path, BenchRecord) for path in paths[-MOST_KEPT:]))
    alike = [one for one in found if one.shape == record.shape and one.time is not None]
    return max(alike, key=lambda one: one.time or 0.0, default=None)


LAST_TAIL = 64 << 10
"""Bytes at the end of a node's file that hold its last event, even with many GPUs."""

START_HEAD = 256 << 10
"""Bytes at the beginning of a node's file that hold the events of its start: about an hour with eight GPUs."""

_SAMPLE, _OUTPUT, _SAVED = b'"sample"', b'"output"', b'"saved"'


_Time = Annotated[float, Meta(ge=-1e12, le=1e12)]


class WatcherEvent(Struct, frozen=True, kw_only=True):
    """One event of a node. `t` is in seconds since the epoch."""

    event: str
    t: float | None = None
    host: str | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    oom_kill: bool | None = None
    """Whether the kernel killed the rank for memory; None where nothing tells."""
    text: str | None = None
    """What nvidia-smi reports about a GPU that broke."""
    ranks: Any = None
    """Process ids by rank in a `ranks` event, a list of ranks in a `hang` event."""
    marks: dict[str, str] = {}
    """In a `phase` event, how far each process is, by its rank; the launcher is `-` (agent/sitecustomize.py)."""

    def has_rank(self, rank: int) -> bool:
        """Whether this event says that a rank runs on the node."""
        return self.event == "ranks" and isinstance(self.ranks, dict) and str(rank) in self.ranks


class GpuSample(Struct, frozen=True, kw_only=True):
    """One GPU in a sample, as nvidia-smi reports it."""

    index: int
    util: float | None = None
    """Percent."""
    mem_mib: float | None = None
    throttle: str | None = None
    """Bits of `clocks_throttle_reasons.active` in hexadecimal."""


class WatcherSample(Struct, frozen=True, kw_only=True):
    """One sample of a node. `t` is in seconds since the epoch."""

    event: str
    t: float = 0.0
    rss_mib: dict[str, float] = {}
    cpu_s: dict[str, float] = {}
    """By rank, as `rss_mib`: the CPU time since it began."""
    log: tuple[int, float] | None = None
    """Size of the log that shows the node's progress in bytes, and when it was last written."""
    places: dict[str, dict[str, int]] = {}
    """How often each rank was seen at which place of the kernel, by rank."""
    net_bytes_s: dict[str, tuple[float, float]] = {}
    """Bytes per second received and sent, by interface."""
    gpus: tuple[GpuSample, ...] = ()
    nvlinks: int | None = None


class _ProgressNote(Struct, frozen=True):
    """What an `output`, `saved` or `sample` event tells of the training's progress. It is decoded strictly."""

    event: str
    t: _Time = 0.0
    seconds: _Time = 0.0
    size: int = 0
    written: _Time = 0.0
    log: tuple[int, _Time] | None = None


_PROGRESS = Decoder(_ProgressNote)


class HangReport(Struct, frozen=True, kw_only=True):
    """agent/hang.json: the training hung. `t` is in seconds since the epoch."""

    t: float | None = None
    node: int | None = None
    host: str | None = None
    silent_s: float | None = None
    """How long there was neither output nor activity."""

    @property
    def began(self) -> float | None:
        """When the training stopped, which is the time of the failure."""
        return self.t - self.silent_s if self.t is not None and self.silent_s is not None else self.t


def read_hang(attempt: AttemptFolder) -> HangReport | None:
    """The report of a hang; None where no watcher detected one."""
    return read_record(attempt.hang, HangReport)


def watcher_events(path: Path) -> Iterator[WatcherEvent]:
    """The events in the file of a node, without samples."""
    return _events(file_lines(path))


def start_events(path: Path) -> Iterator[WatcherEvent]:
    """The events of a node's start: those at the head of its file."""
    with suppress(OSError), open_regular(path) as stream:
        yield from _events(stream.read(START_HEAD).splitlines())


def log_growth(path: Path) -> tuple[list[tuple[float, int]], list[tuple[float, float]]]:
    """From the file of node 0: when its log had which size in bytes, and from when to when rank 0 saved.

    Samples tell the size as well. There may be tens of thousands of lines, so only what is needed is converted.
    """
    growth: list[tuple[float, int]] = []
    saves: list[tuple[float, float]] = []
    for line in file_lines(path):
        if not (_OUTPUT in line or _SAVED in line or _SAMPLE in line):
            continue
        try:
            note = _PROGRESS.decode(line)
        except MsgspecError:
            continue
        if note.event == "saved" and note.seconds > 0:
            saves.append((note.t - note.seconds, note.t))
        size, written = note.log or (note.size, note.written)
        if note.event in ("output", "sample") and size > 0:
            growth.append((written, size))
    return growth, saves


def last_event(path: Path) -> WatcherEvent | None:
    """The last complete line of a node's file."""
    with suppress(OSError):
        for line in reversed(read_tail(path, LAST_TAIL)[0].splitlines()):
            event = line_record(line, WatcherEvent)
            if event is not None and event.t is not None:
                return event
    return None


def _events(lines: Iterable[bytes]) -> Iterator[WatcherEvent]:
    for line in lines:
        event = line_record(line, WatcherEvent) if _SAMPLE not in line and _OUTPUT not in line else None
        if event is not None:
            yield event


def watcher_samples(path: Path, most: int = SAMPLE_TAIL) -> Iterator[WatcherSample]:
    """The newest samples in the file of a node, from so many bytes at its end."""
    with suppress(OSError):
        for line in read_tail(path, most)[0].splitlines():
            sample = line_record(line, WatcherSample) if _SAMPLE in line else None
            if sample is not None and sample.event == "sample":
                yield sample


PLACES, WINDOW = 160, 32 << 10
"""At how many places a long file is read, and how many bytes there: a sample of eight GPUs takes about 3 KiB."""


def spread_samples(path: Path) -> Iterator[WatcherSample]:
    """Samples in the file of a node: of a long one, those at PLACES evenly spread places. Never raises."""
    with suppress(OSError), open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        places = [place * size // PLACES for place in range(PLACES)] if size > PLACES * WINDOW else [0]
        most, length = (1, WINDOW) if len(places) > 1 else (None, size)
        for place in places:
            stream.seek(place)
            lines = stream.read(length).splitlines()[1 if place else 0 :]
            found = (line_record(line, WatcherSample) for line in lines if _SAMPLE in line)
            yield from islice((one for one in found if one is not None and one.event == "sample"), most)


BAD_NODES = 76
"""Exit code of a job whose node check failed (agent/judge.py)."""


class NodeCheckFinding(Struct, frozen=True, kw_only=True):
    """One failed check: of `node`, or of so many `nodes` that it is not the fault of one."""

    check: str
    text: str
    node: str | None = None
    nodes: int | None = None
    seconds: float | None = None
    """When it was certain, since the first node began its check."""


class NodeCheckRecord(Struct, frozen=True, kw_only=True):
    """The outcome of the node check."""

    job_id: str | None = None
    nodes: int | None = None
    """How many nodes were checked."""
    seconds: float | None = None
    bad: tuple[NodeCheckFinding, ...] = ()
    common: tuple[NodeCheckFinding, ...] = ()
    """What failed on most nodes. The training started all the same."""
    not_checked: dict[str, str] = {}
    """Checks that were not possible, with the reason."""
    medians: dict[str, str] = {}
    """What the nodes of this job reach, by measurement (`preflight: full`)."""
