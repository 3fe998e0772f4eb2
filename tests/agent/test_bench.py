"""Bus bandwidth, and rounds of pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent.bench import COLLECTIVES, factor, point, rounds


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
