"""Groups of ranks and the nodes that they cover."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout, RankGroups, Spread, group_shapes, rank_groups, spread


def _groups(parallel: Parallel, nodes: list[int]) -> dict[str, RankGroups]:
    return {found.kind: found for found in rank_groups(ParallelLayout(parallel, sum(nodes)), nodes)}


def test_megatron_order() -> None:
    """The example of Megatron-LM's parallel_state.py: 16 GPUs, TP 2, PP 4 (docstring of initialize_model_parallel)."""
    groups = _groups(Parallel(tp=2, pp=4), [8, 8])
    assert groups["tp"].groups == tuple((rank, rank + 1) for rank in range(0, 16, 2))
    assert groups["dp"].groups == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
    assert groups["pp"].groups == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    assert groups["tp"].spread == Spread(1, 2)
    assert groups["pp"].spread == Spread(2, 2)
    assert groups["pp"].crossing == 4


def test_guide_example() -> None:
    """Two nodes of eight GPUs: PP 2 × TP 8 leaves one replica, PP 2 × TP 4 two."""
    assert set(_groups(Parallel(tp=8, pp=2), [8, 8])) == {"tp", "pp"}
    groups = _groups(Parallel(tp=4, pp=2), [8, 8])
    assert groups["dp"].spread == Spread(1, 2)
    assert groups["pp"].spread == Spread(2, 1)


def test_experts_share_the_ranks_of_a_stage() -> None:
    groups = _groups(Parallel(tp=2, pp=2, ep=4, etp=1), [8, 8])
    assert groups["ep"].groups == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    assert groups["edp"].groups[0] == (0, 4)
    assert "etp" not in groups


def test_uneven_nodes() -> None:
    """Hosts of 8, 8 and 4 GPUs: a tensor-parallel group of 8 does not fit on the last."""
    groups = _groups(Parallel(tp=4, pp=5), [8, 8, 4])
    assert groups["tp"].crossing == 0
    assert groups["pp"].spread == Spread(3, 1)
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
    strides = {shape.kind: shape.stride for shape in group_shapes(layout)}
    for found in rank_groups(layout, nodes):
        assert sorted(rank for group in found.groups for rank in group) == list(range(world))
        assert spread(found.size, strides[found.kind], world, per_node) == found.spread
