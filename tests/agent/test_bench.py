"""Bus bandwidth, rounds of pairs and the table of nccl-tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent.bench import COLLECTIVES, factor, mpi_programs, output_of, point, rounds, rows_of_tests

TABLE = """\
# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 134217728 step: 2(factor) warmup iters: 10 iters: 50 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid 2994447 on        lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090
#  Rank  1 Group  0 Pid 2994448 on        lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1  4366.46    0.24    0.24       0  4365.21    0.24    0.24       0
     2097152        524288     float     sum      -1  4370.57    0.48    0.48       0  4368.39    0.48    0.48       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.36
"""
OLD = """\
#   Rank  0 Pid   1337 on      node1 device  0 [0x07] A100
#   Rank  1 Pid   1338 on      node1 device  1 [0x0f] A100
        8192          1024     float    17.42    0.47    0.23  0e+00    17.22    0.48    0.24  0e+00
"""


@given(st.integers(2, 10_000), st.integers(1, 1 << 40), st.floats(1e-6, 1e3))
def test_bus_bandwidth_is_that_of_nccl_tests(processes: int, size: int, seconds: float) -> None:
    """doc/PERFORMANCE.md: the time of a perfect collective on links of bandwidth B gives back B."""
    ring = {
        "all-reduce": size * 2 * (processes - 1) / processes,
        "all-gather": size * (processes - 1) / processes,
        "reduce-scatter": size * (processes - 1) / processes,
    }
    assert set(ring) == set(COLLECTIVES)
    for collective, sent in ring.items():
        bandwidth = sent / seconds
        assert point(collective, processes, size, seconds)[2] == pytest.approx(bandwidth / 1e9)
        assert 0 < factor(collective, processes) < 2


@given(st.integers(1, 40))
def test_each_pair_of_nodes_is_measured_once_and_no_node_twice_at_a_time(nodes: int) -> None:
    seen = []
    for pairs in rounds(nodes):
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))
        seen += pairs
    assert sorted(seen) == [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]


def test_the_tables_of_nccl_tests() -> None:
    sizes, seconds, rates = zip(*rows_of_tests(TABLE, 2), strict=True)
    assert sizes == (1048576, 2097152)
    assert seconds == pytest.approx((4366.46e-6, 4370.57e-6))
    assert rates == (0.24, 0.48)
    ((size, time, rate),) = rows_of_tests(OLD, 2)
    assert (size, round(time * 1e6, 2), rate) == (8192, 17.42, 0.23)


@pytest.mark.parametrize(
    "text",
    [
        "",
        TABLE.replace("#  Rank  1", "#  Gone  1"),
        TABLE.replace("0.24       0  4365", "0.24       7  4365"),
        "\n".join(TABLE.splitlines()[:11]),
    ],
)
def test_a_table_of_another_job_or_with_wrong_results_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"tests|results|table"):
        rows_of_tests(text, 2)


def test_programs_without_mpi_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def add(name: str, prints: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s ' \"$@\"; echo '{prints}'\n")
        (tmp_path / name).chmod(0o755)

    add("ldd", "libc.so.6 => /lib/libc.so.6")
    for program in COLLECTIVES.values():
        assert mpi_programs(COLLECTIVES) == {}
        add(program, "table")
    assert mpi_programs(COLLECTIVES) == {}
    add("ldd", "libmpi.so.40 => /opt/libmpi.so.40")
    found = mpi_programs(COLLECTIVES)
    assert set(found) == set(COLLECTIVES)
    assert output_of(found["all-reduce"], 1024, 4096, 4) == "-b 1024 -e 4096 -f 4 -g 1 table\n"
