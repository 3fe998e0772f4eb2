"""bench.json: bandwidths that `doctor --bench` measured (agent/bench.py), and the earlier ones of a site."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.base.user_dirs import make_private, state_folder
from hpc_launch.runs.layout import AttemptFolder

MOST_KEPT = 200
"""Earlier measurements of a site that are compared."""


class BenchRecord(Struct, frozen=True, kw_only=True):
    """One measurement. Bandwidths are bus bandwidths in GB/s (10**9 bytes), as nccl-tests define them."""

    nodes: tuple[str, ...]
    per_node: int
    """Processes per node."""
    backend: str
    """`nccl` or `gloo`."""
    tool: str = ""
    """What measured the collectives: `nccl-tests` or the version of PyTorch."""
    curves: dict[str, tuple[tuple[int, float, float], ...]] = {}
    """(bytes, seconds, bandwidth) by collective."""
    pair_bytes: int = 0
    """Message size of `pairs`."""
    pairs: tuple[tuple[int, int, float], ...] = ()
    """Two nodes, by their place in `nodes`, and the bandwidth of all-reduce between them."""
    not_measured: dict[str, str] = {}
    site: str | None = None
    run: str | None = None
    time: float | None = None

    @property
    def shape(self) -> tuple[int, int, str]:
        """Measurements of the same shape can be compared."""
        return len(self.nodes), self.per_node, self.backend

    def valid_pairs(self) -> list[tuple[int, int, float]]:
        """The pairs of two known nodes."""
        return [(a, b, rate) for a, b, rate in self.pairs if 0 <= a < b < len(self.nodes) and 0 < rate < math.inf]


def read_bench(attempt: AttemptFolder) -> BenchRecord | None:
    """What the job of an attempt measured; None where it measured nothing."""
    return read_record(attempt.bench, BenchRecord)


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
    found = [one for one in _stored(site) if one.shape == record.shape and one.time is not None]
    return max(found, key=lambda one: one.time or 0.0, default=None)


def _stored(site: str) -> Iterator[BenchRecord]:
    with suppress(OSError):
        paths = sorted(bench_folder(site).glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in paths[-MOST_KEPT:]:
            record = read_record(path, BenchRecord)
            if record is not None:
                yield record
