"""Groups of ranks and the nodes that they cover."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout, Spread, group_shapes, members, rank_groups, spread


def _spreads(parallel: Parallel, nodes: list[int]) -> dict[str, Spread]:
    return {found.kind: found.spread for found in rank_groups(ParallelLayout(parallel, sum(nodes)), nodes)}


def _ranks(parallel: Parallel, world: int) -> dict[str, list[tuple[int, ...]]]:
    shapes = group_shapes(ParallelLayout(parallel, world))
    return {shape.kind: list(map(tuple, members(shape, world))) for shape in shapes}


def test_megatron_order() -> None:
    """The example of Megatron-LM's parallel_state.py: 16 GPUs, TP 2, PP 4 (docstring of initialize_model_parallel)."""
    groups = _ranks(Parallel(tp=2, pp=4), 16)
    assert groups["tp"] == [(rank, rank + 1) for rank in range(0, 16, 2)]
    assert groups["dp"] == [(0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)]
    assert groups["pp"] == [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    spreads = _spreads(Parallel(tp=2, pp=4), [8, 8])
    assert (spreads["tp"], spreads["pp"]) == (Spread(1, 2), Spread(2, 2))


def test_experts_share_the_ranks_of_a_stage() -> None:
    groups = _ranks(Parallel(tp=2, pp=2, ep=4, etp=1), 16)
    assert groups["ep"] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
    assert groups["edp"][0] == (0, 4)
    assert "etp" not in _spreads(Parallel(tp=2, pp=2, ep=4, etp=1), [8, 8])


def test_uneven_nodes() -> None:
    """Hosts of 8, 8 and 4 GPUs."""
    spreads = _spreads(Parallel(tp=4, pp=5), [8, 8, 4])
    assert (spreads["tp"], spreads["pp"]) == (Spread(1, 4), Spread(3, 1))
    with pytest.raises(ValueError, match="hold 16 processes, the layout needs 20"):
        rank_groups(ParallelLayout(Parallel(tp=4, pp=5), 20), [8, 8])


@given(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 3, 4, 8]),
)
def test_spread_and_partition(tp: int, cp: int, pp: int, dp: int, per_node: int) -> None:
    """Groups of a kind divide the ranks; the spread of equal nodes is that of the groups themselves."""
    world = tp * cp * pp * dp
    layout = ParallelLayout(Parallel(tp=tp, cp=cp, pp=pp), world)
    nodes = [per_node] * (world // per_node) + ([world % per_node] if world % per_node else [])
    spreads = {found.kind: found.spread for found in rank_groups(layout, nodes)}
    for shape in group_shapes(layout):
        assert sorted(rank for group in members(shape, world) for rank in group) == list(range(world))
        assert shape.size == 1 or spread(shape.size, shape.stride, world, per_node) == spreads[shape.kind]
