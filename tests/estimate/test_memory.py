"""Memory per GPU by category: formulas, stages, and how it follows the setup."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpc_launch.estimate.memory import memory, memory_by_stage, reductions
from hpc_launch.estimate.model_states import kept, model_states
from hpc_launch.estimate.training_setup import TrainingSetup, stages
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import Experts, ModelConfig, parameters
from tests.estimate.measured_steps import TORCHTITAN

GIB = 2**30


def gpt(hidden: int, heads: int, layers: int) -> ModelConfig:
    """A model of Korthikanti et al. (arXiv 2205.05198, table 3)."""
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        vocab=51200,
        heads=heads,
        query_groups=heads,
        head_dim=hidden // heads,
        gated=False,
        tied=True,
        positions=2048,
        qkv_bias=True,
        biases=True,
        norm_bias=True,
    )


GPT_22B, GPT_175B = gpt(6144, 64, 48), gpt(12288, 96, 96)
GPT_530B, GPT_1T = gpt(20480, 128, 105), gpt(25600, 160, 128)
LLAMA_3_8B = TORCHTITAN["8"]
MIXTURE = replace(LLAMA_3_8B, experts=Experts(count=8, per_token=2, ffn=14336))


def megatron(world: int, **sizes: int | bool) -> TrainingSetup:
    return TrainingSetup(
        layout=ParallelLayout(Parallel(**sizes), world),  # type: ignore[arg-type]
        sequence=2048,
        framework="megatron",
        flash_attention=False,
        dropout=True,
    )


@pytest.mark.parametrize("model", [GPT_22B, GPT_175B, GPT_530B, GPT_1T])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_activations_follow_korthikanti(model: ModelConfig, micro_batch: int) -> None:
    """Arxiv 2205.05198, table 2, to the byte."""
    tensor = 8
    unit = 2048 * micro_batch * model.hidden
    square = 5 * model.heads * 2048 / model.hidden
    alone = megatron(1, micro_batch=micro_batch)
    split = megatron(tensor, tp=tensor, micro_batch=micro_batch)
    along = megatron(tensor, tp=tensor, micro_batch=micro_batch, sequence_parallel=True)
    expected = {
        34 + square: alone,
        10 + 24 / tensor + square / tensor: split,
        (34 + square) / tensor: along,
        10 + 24 / tensor: replace(split, recompute="selective"),
        34 / tensor: replace(along, recompute="selective"),
        2: replace(split, recompute="full"),
    }
    for factor, setup in expected.items():
        assert kept(model, setup, 0) == pytest.approx(factor * unit, rel=1e-12)


@pytest.mark.parametrize("model", [LLAMA_3_8B, MIXTURE])
@pytest.mark.parametrize("sizes", [{}, {"pp": 4}, {"pp": 3}, {"pp": 2, "vpp": 3}])
def test_stages_hold_every_layer_and_parameter_once(model: ModelConfig, sizes: dict[str, int]) -> None:
    setup = replace(megatron(24, **sizes), framework="pytorch")
    found = stages(model, setup)
    assert sorted(layer for stage in found for layer in stage.layers) == list(range(model.layers))
    assert sum(stage.total for stage in found) == parameters(model).total


def test_uneven_stages_hold_the_layers_that_megatron_gives_them() -> None:
    """The last stage holds fewer layers, but the output layer; the first keeps the most micro batches."""
    sizes = {"pp": 4, "first_stage_layers": 7, "last_stage_layers": 5, "global_batch": 24}
    found = stages(LLAMA_3_8B, megatron(24, **sizes))
    assert [stage.layers for stage in found] == [
        tuple(range(7)), tuple(range(7, 17)), tuple(range(17, 27)), tuple(range(27, 32)),
    ]  # fmt: skip
    even, uneven = (memory_by_stage(LLAMA_3_8B, megatron(24, **one)) for one in ({"pp": 4, "global_batch": 24}, sizes))
    assert uneven[0].activations < even[0].activations
    assert uneven[1].parameters > even[1].parameters
    assert uneven[3].parameters < even[3].parameters


def test_experts_of_layers_that_predict_later_tokens_are_divided_like_all_experts() -> None:
    predicting = replace(MIXTURE, next_token_layers=1)
    one, two = (stages(predicting, megatron(24, ep=ep))[0].total for ep in (1, 2))
    without_one, without_two = (stages(MIXTURE, megatron(24, ep=ep))[0].total for ep in (1, 2))
    assert (one - without_one) - (two - without_two) == parameters(MIXTURE).layers[0].experts // 2


def states(setup: TrainingSetup, model: ModelConfig = LLAMA_3_8B) -> float:
    """Bytes per parameter of the states on one GPU."""
    (stage,) = stages(model, setup)
    return sum(model_states(stage, setup)) / parameters(model).total


@pytest.mark.parametrize(
    ("framework", "sharding", "each"),
    [
        ("megatron", "none", 18),
        ("megatron", "distributed_optimizer", 6 + 12 / 8),
        ("deepspeed", "none", 16),
        ("deepspeed", "zero1", 4 + 12 / 8),
        ("deepspeed", "zero2", 2 + 20 / 8),
        ("deepspeed", "zero3", 16 / 8 + 6 * 1e9 / 8.03e9),
        ("pytorch", "none", 16),
        ("pytorch", "zero1", 8 + 8 / 8),
        ("pytorch", "fsdp1", 16 / 8),
        ("pytorch", "fsdp2", 16 / 8),
    ],
)
def test_bytes_per_parameter(framework: str, sharding: str, each: float) -> None:
    setup = replace(megatron(8), framework=framework, sharding=sharding)
    assert states(setup) == pytest.approx(each, rel=1e-3)


def test_experts_are_shared_by_fewer_replicas() -> None:
    """With EP 8 on 8 GPUs, each expert exists once: its optimizer states are not shared."""
    setup = replace(megatron(8, ep=8), sharding="distributed_optimizer")
    (stage,) = stages(MIXTURE, setup)
    assert stage.experts == parameters(MIXTURE).experts // 8
    assert sum(model_states(stage, setup)) == pytest.approx(stage.dense * (6 + 12 / 8) + stage.experts * 18, abs=2)


def test_the_estimate_is_of_the_stage_that_needs_the_most() -> None:
    setup = megatron(8, pp=4, global_batch=32)
    by_stage = memory_by_stage(LLAMA_3_8B, setup)
    assert [estimate.stage for estimate in by_stage] == [0, 1, 2, 3]
    assert memory(LLAMA_3_8B, setup) == max(by_stage, key=lambda estimate: estimate.total)
    assert [estimate.logits > 0 for estimate in by_stage] == [False, False, False, True]
    assert all(estimate.low < estimate.total < estimate.high for estimate in by_stage)


def test_fewer_tokens_than_ranks() -> None:
    setup = replace(megatron(8, cp=8), framework="pytorch", recompute="selective", sequence=4)
    assert memory(MIXTURE, setup).activations == 0


def test_reductions_are_sorted_and_correct() -> None:
    setup = megatron(16, tp=2, micro_batch=2, global_batch=64)
    found = reductions(LLAMA_3_8B, setup)
    now = memory(LLAMA_3_8B, setup).total
    assert [change.saved for change in found] == sorted((change.saved for change in found), reverse=True)
    assert all(now - memory(LLAMA_3_8B, change.setup).total == change.saved > 0 for change in found)
    assert all(change.setup.layout.global_batch == 64 for change in found)
    assert {"share the states: distributed optimizer", "use sequence parallelism", "halve the micro batch to 1"} <= {
        change.change for change in found
    }
