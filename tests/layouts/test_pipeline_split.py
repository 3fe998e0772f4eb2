"""Layers of pipeline stages: those that are proposed are those that Megatron builds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import (
    ModelShape,
    ParallelLayout,
    even_parts,
    megatron_parts,
    split_for,
    stage_units,
    virtual_sizes,
)
from hpc_launch.layouts.parallel_rules import check


@pytest.mark.parametrize(
    ("layers", "parallel", "expected"),
    [
        # NVIDIA/NeMo 00f65ddf, collections/llm/recipes/deepseek_v3.py: pre-training, and two kinds of fine-tuning.
        (61, Parallel(pp=16, first_stage_layers=3, last_stage_layers=2), [3, *[4] * 14, 2]),
        (61, Parallel(pp=7, first_stage_layers=8, last_stage_layers=8), [8, *[9] * 5, 8]),
        (61, Parallel(pp=5, first_stage_layers=13, last_stage_layers=12), [13, 12, 12, 12, 12]),
        # Llama 3.1 405B (arXiv 2407.21783, section 3.3.2).
        (126, Parallel(pp=16, count_embedding=True, count_loss=True), [7, *[8] * 14, 7]),
        (5, Parallel(pp=2, first_stage_layers=2), [2, 3]),
        (5, Parallel(pp=2, last_stage_layers=4), [1, 4]),
        (8, Parallel(pp=2, vpp=2), [2, 2, 2, 2]),
        (7, Parallel(pp=2, vpp=2, count_loss=True), [2, 2, 2, 1]),
        (6, Parallel(pp=2, vpp=4, count_embedding=True, count_loss=True), [0, 1, 1, 1, 1, 1, 1, 0]),
        (10, Parallel(pp=3, vpp=2, first_stage_layers=2, last_stage_layers=4), [1, 2, 2, 1, 2, 2]),
        (61, Parallel(pp=16), None),
        (61, Parallel(pp=16, first_stage_layers=3), None),
        (8, Parallel(pp=2, first_stage_layers=8), None),
        (8, Parallel(pp=2, first_stage_layers=9), None),
        (9, Parallel(pp=3, vpp=2, first_stage_layers=3), None),
    ],
)
def test_layers_of_each_virtual_stage(layers: int, parallel: Parallel, expected: list[int] | None) -> None:
    assert megatron_parts(layers, parallel) == (tuple(expected) if expected is not None else None)


@given(st.integers(1, 200), st.integers(1, 64))
def test_every_division_that_is_proposed_passes_the_rules(layers: int, pp: int) -> None:
    split = split_for(layers, pp)
    if split is None:
        assert layers % pp
        return
    if layers % pp == 0:
        assert split == Parallel(pp=pp)
    for virtual in (None, *virtual_sizes(layers, split)):
        sizes = replace(split, vpp=virtual if pp > 1 else None, overlap=True, global_batch=2 * pp)
        parts = megatron_parts(layers, sizes)
        assert parts is not None
        assert sum(parts) == layers
        assert len(parts) == pp * (sizes.vpp or 1)
        assert check(ParallelLayout(sizes, pp), ModelShape(num_layers=layers), lambda _: None) == []
    units = stage_units(layers, split)
    assert units is not None
    assert max(units) <= 2 * -(-layers // pp)


@given(st.integers(1, 200), st.integers(1, 64))
def test_other_programs_divide_as_evenly_as_possible(layers: int, parts: int) -> None:
    sizes = even_parts(layers, parts)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
