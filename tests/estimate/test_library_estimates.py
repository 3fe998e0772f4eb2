"""Megatron's and DeepSpeed's own estimators, with figures that those libraries printed."""

from __future__ import annotations

import pytest

from hpc_launch.estimate.model_states import model_states
from hpc_launch.estimate.training_setup import TrainingSetup, stages
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import ModelConfig, parameters
from tests.estimate.library_estimates import deepspeed_states

GIB = 2**30
LLAMA_2_7B = ModelConfig(
    layers=32, hidden=4096, ffn=11008, vocab=32000, heads=32, query_groups=32, head_dim=128, gated=True, tied=False
)


def deepspeed(ranks: int, sharding: str, **offload: bool) -> TrainingSetup:
    layout = ParallelLayout(Parallel(), ranks)
    return TrainingSetup(layout=layout, sequence=2048, framework="deepspeed", sharding=sharding, **offload)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "largest", "setup", "gib"),
    [
        (7e9, 0, deepspeed(8, "zero2"), 27.71),
        (7e9, 0, deepspeed(8, "zero2", offload_optimizer=True), 13.04),
        (7e9, 131e6, deepspeed(8, "zero3"), 15.16),
        (7e9, 131e6, deepspeed(8, "zero3", offload_optimizer=True), 2.12),
        (7e9, 131e6, deepspeed(8, "zero3", offload_optimizer=True, offload_parameters=True), 0.49),
        (70e9, 1.3e9, deepspeed(32, "zero3"), 41.51),
    ],
)
def test_deepspeed_prints_these_sizes(total: float, largest: float, setup: TrainingSetup, gib: float) -> None:
    """DeepSpeed 0.19.8, estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs."""
    assert round(deepspeed_states(int(total), int(largest), setup) / GIB, 2) == gib


@pytest.mark.parametrize("ranks", [1, 8, 32])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("offload", [{}, {"offload_optimizer": True}])
def test_states_equal_deepspeeds(ranks: int, sharding: str, offload: dict[str, bool]) -> None:
    """To the byte; each of the three parts is rounded once.

    Without offload the estimators leave out what the step needs: a flat copy of a rank's gradients in 16 bits and, for
    ZeRO 3, their copy in 32 bits, both of one sub-group of 10^9 elements (runtime/zero/stage3.py; measured in
    test_measured_here).
    """
    setup = deepspeed(ranks, sharding, **offload)
    (stage,) = stages(LLAMA_2_7B, setup)
    assert stage.total == parameters(LLAMA_2_7B).total
    share = stage.total / ranks
    more = 0.0
    if not offload:
        more = 2 * share if sharding == "zero2" else 6 * min(share, 10**9) - 2 * share
    assert sum(model_states(stage, setup)) == pytest.approx(deepspeed_states(stage.total, 0, setup) + more, abs=1)


@pytest.mark.parametrize(
    ("parallel", "states"),
    [
        (Parallel(distributed_optimizer=True), 47.067),
        (Parallel(tp=2, distributed_optimizer=True), 28.241),
        (Parallel(tp=2, pp=2, distributed_optimizer=True, global_batch=16), 18.828),
        (Parallel(), 112.961),
    ],
)
def test_megatron_reports_these_states(parallel: Parallel, states: float) -> None:
    """Megatron-LM d98e8a64, training/theoretical_memory_usage.py, run with these sizes on 8 GPUs."""
    sharding = "distributed_optimizer" if parallel.distributed_optimizer else "none"
    layout = ParallelLayout(parallel, 8)
    setup = TrainingSetup(layout=layout, sequence=4096, framework="megatron", sharding=sharding)  # type: ignore[arg-type]
    found = max(sum(model_states(stage, setup)) for stage in stages(LLAMA_2_7B, setup))
    assert found / GIB == pytest.approx(states, rel=0.001)
