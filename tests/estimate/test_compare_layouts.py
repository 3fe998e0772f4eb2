"""List layouts: each meets every rule and fits, and the order of the input does not matter."""

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpc_launch.estimate.compare_layouts import (
    Choices,
    Comparison,
    allowed_setups,
    compare_layouts,
    rank,
    recommended,
)
from hpc_launch.estimate.memory import memory
from hpc_launch.estimate.training_setup import Framework, TrainingSetup
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.layouts.parallel_rules import check
from hpc_launch.model.model_config import Experts, ModelConfig
from hpc_launch.model.read_model import known_model
from tests.estimate.measured_steps import TORCHTITAN, gpu

A100 = gpu("a100", 80 * 1024)
H100 = gpu("h100", 80 * 1024)


def _like(gpus: int, batch: int, framework: Framework = "megatron", sequence: int = 4096) -> TrainingSetup:
    layout = ParallelLayout(Parallel(global_batch=batch), gpus)
    return TrainingSetup(layout=layout, sequence=sequence, framework=framework)


_MODELS = st.builds(
    lambda layers, heads, groups, experts: ModelConfig(
        layers=layers,
        hidden=heads * 64,
        ffn=heads * 192,
        vocab=32000,
        heads=heads,
        query_groups=heads // groups if heads % groups == 0 else heads,
        head_dim=64,
        gated=True,
        tied=False,
        experts=Experts(count=experts, per_token=2, ffn=512) if experts else None,
    ),
    st.integers(1, 48),
    st.sampled_from([6, 8, 24, 32]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 0, 6, 8]),
)
_CHOICES = st.sampled_from([Choices(), Choices(model_parallel=False, recompute=("none", "full"))])
_FRAMEWORKS = st.sampled_from(["megatron", "pytorch", "deepspeed"])


@settings(max_examples=40)
@given(
    _MODELS,
    st.integers(1, 48),
    st.integers(1, 4),
    _FRAMEWORKS,
    st.sampled_from([1000, 4096, 16384]),
    st.randoms(),
    _CHOICES,
)
def test_listed_layouts_meet_every_rule(  # noqa: PLR0917 - what hypothesis draws
    model: ModelConfig,
    gpus: int,
    batches: int,
    framework: Framework,
    sequence: int,
    order: random.Random,
    choices: Choices,
) -> None:
    like = _like(gpus, gpus * batches, framework, sequence)
    found = compare_layouts(model, like, A100, choices)
    for layout in found.layouts:
        setup = layout.setup
        shape = replace(model.shape, seq_length=sequence)
        even = framework == "megatron"
        assert check(setup.layout, shape, lambda _: None, gpus_per_node=A100.per_node, even=even) == []
        assert sum(layout.stage_layers) == model.layers
        assert len(layout.stage_layers) == setup.layout.parallel.pp
        assert (setup.layout.world_size, setup.layout.global_batch) == (gpus, gpus * batches)
        assert layout.memory == memory(model, setup)
        assert layout.memory.high <= A100.memory
        assert setup.recompute in choices.recompute
        assert setup.layout.model_parallel == 1 or choices.model_parallel
        assert setup.sharding in ("zero1", "zero2", "zero3", "fsdp2", "hsdp") or not setup.offload_optimizer
        assert setup.sharding in ("zero3", "fsdp2", "hsdp") or not setup.offload_parameters
    times = [layout.step_s for layout in found.layouts]
    assert times == sorted(times)
    shuffled = list(allowed_setups(model, like, A100.per_node, choices))
    order.shuffle(shuffled)
    assert rank(model, shuffled, A100, choices.recompute) == found.layouts


def _best(found: Comparison) -> Parallel:
    return found.layouts[0].setup.layout.parallel


def test_70_billion_parameters_on_512_gpus_in_two_seconds() -> None:
    before = time.process_time()
    found = compare_layouts(TORCHTITAN["70"], _like(512, 1024, sequence=8192), H100)
    assert time.process_time() - before < 2
    assert len(found.layouts) > 100
    assert _best(found).tp in (2, 4, 8)
    assert _best(found).pp > 1


def test_nothing_fits() -> None:
    found = compare_layouts(TORCHTITAN["405"], _like(8, 64), A100)
    assert found.layouts == ()
    assert found.allowed > 0
    assert found.least_memory is not None
    assert found.least_memory > A100.memory
    assert recommended(found) is None


def test_llama_3_405b_on_its_published_layout() -> None:
    """arXiv 2407.21783, table 4: 126 layers on TP 8 × PP 16 × DP 128, first and last stage one layer less."""
    found = compare_layouts(TORCHTITAN["405"], _like(16384, 2048, sequence=8192), H100)
    chosen = [one for one in found.layouts if (one.setup.layout.parallel.tp, one.setup.layout.parallel.pp) == (8, 16)]
    assert {one.stage_layers for one in chosen} == {(7, *(8,) * 14, 7)}
    assert {one.setup.layout.parallel.vpp for one in chosen} == {None, 2, 4, 8}
    assert found.layouts.index(chosen[0]) < 3


def test_deepseek_v3_on_its_published_layout() -> None:
    """PP 16, EP 64 (arXiv 2412.19437, section 3.2); 3 and 2 layers (NVIDIA/NeMo 00f65ddf, recipes/deepseek_v3.py)."""
    model, _ = known_model("deepseek-v3", None)
    assert model is not None
    found = compare_layouts(model, _like(1024, 4096), H100)
    chosen = [one for one in found.layouts if one.setup.layout.parallel.pp == 16 and one.setup.layout.parallel.ep == 64]
    assert {one.stage_layers for one in chosen} == {(3, *(4,) * 14, 2)}
    assert {one.setup.layout.parallel.vpp for one in chosen} == {None}


def test_no_stage_is_uneven_where_an_even_division_exists() -> None:
    for framework in ("megatron", "pytorch"):
        found = compare_layouts(TORCHTITAN["70"], _like(512, 1024, framework, sequence=8192), H100)
        assert all(len(set(one.stage_layers)) == 1 for one in found.layouts if 80 % one.setup.layout.parallel.pp == 0)
