"""Bus bandwidth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent.bench import COLLECTIVES, factor, point


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
