"""What `doctor --bench` reports and stores."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpc_launch.preflight.bench import bytes_text, changes, rate, table
from hpc_launch.runs.records.node_records import BenchRecord, bench_folder, previous_bench, store_bench

MIB = 1 << 20
DAY = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))


def record(bandwidth: float = 50.0, *nodes: str) -> BenchRecord:
    points: tuple[tuple[int, float, float], ...] = ((MIB, 1e-4, bandwidth / 2), (64 * MIB, 1e-3, bandwidth))
    curves = {"all-reduce": points, "all-gather": points}
    return BenchRecord(nodes=nodes or ("n1", "n2", "n3"), per_node=4, backend="nccl", curves=curves)


def test_what_changed_since_the_last_measurement() -> None:
    before, now = replace(record(50.24), time=DAY), record(41.2)
    now = replace(now, curves={**now.curves, "all-gather": before.curves["all-gather"]})
    assert list(changes(now, before)) == [
        "all-reduce at 1 MiB: 20.6 GB/s, 18 % below the run of 2026-11-20 12:00",
        "all-gather: within 10 % of the run of 2026-11-20 12:00",
    ]
    assert list(changes(now, None)) == ["first measurement of 3 nodes x 4 processes with nccl on this site"]


def test_the_table_has_a_column_for_each_collective() -> None:
    lines = list(table(record()))
    assert lines[0].split() == ["bytes", "all-reduce", "all-gather"]
    assert lines[-1].split() == ["64", "MiB", "50.0", "GB/s", "50.0", "GB/s"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.0123"), (0.0000004, "0.000000"), (1.234, "1.23"), (41.24, "41.2"), (412.4, "412")]
)
def test_a_rate_has_three_digits(value: float, text: str) -> None:
    assert rate(value) == f"{text} GB/s"
    assert [bytes_text(size) for size in (64 * MIB, MIB - 4, 1020, 900, 1500)] == [
        "64 MiB",
        "1 MiB",
        "1 KiB",
        "900 B",
        "1.5 KiB",
    ]


def test_only_measurements_of_the_same_shape_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    now = record()
    store_bench(record(30.0), "site/../x", "first", DAY)
    store_bench(record(40.0), "site/../x", "second", DAY + 60)
    store_bench(record(10.0, "n1"), "site/../x", "third", DAY + 120)
    (bench_folder("site/../x") / "torn.json").write_text('{"nodes": [')
    before = previous_bench(now, "site/../x")
    assert before is not None
    assert (before.run, before.site) == ("second", "site/../x")
    assert bench_folder("site/../x").parent == tmp_path / "hpc-launch" / "bench"


NAMES = st.text(max_size=30)
RATES = st.floats(1e-9, 1e12) | st.sampled_from([0.0, -1.0])


@given(
    st.lists(NAMES, min_size=1, max_size=6),
    st.dictionaries(NAMES, st.lists(st.tuples(st.integers(-5, 1 << 50), RATES, RATES), max_size=5), max_size=4),
)
def test_any_record_can_be_reported(
    nodes: list[str],
    curves: dict[str, list[tuple[int, float, float]]],
) -> None:
    found = BenchRecord(
        nodes=tuple(nodes),
        per_node=1,
        backend="gloo",
        curves={name: tuple(points) for name, points in curves.items()},
    )
    list(table(found))
    list(changes(found, found))
