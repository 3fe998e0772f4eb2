"""Parallel layouts: each rule with a layout that breaks it alone, and what holds for every layout that passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.base.findings import Place, errors
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ModelShape, ParallelLayout
from hpc_launch.layouts.parallel_rules import check
from hpc_launch.plan.megatron_args import flags
from tests.strategies.conftest import Config

MODEL = ModelShape(num_layers=32, hidden_size=4096, heads=32, query_groups=8, seq_length=8192)


def broken(parallel: Parallel, world: int = 64, model: ModelShape = MODEL, **more: Any) -> dict[str, str]:
    """Each code with the field that it names."""
    findings = check(ParallelLayout(parallel, world), model, Place, **more)
    return {found.code: found.place.file for found in findings if found.place}


@pytest.mark.parametrize(
    ("parallel", "world", "more", "expected"),
    [
        ({"tp": 8}, 4, {}, {"HL640": "world_size"}),
        ({"ep": 8, "pp": 3, "global_batch": 96}, 96, {"num_experts": 64, "num_layers": 33}, {}),
        ({"ep": 16, "pp": 2, "global_batch": 48}, 48, {"num_experts": 64}, {"HL641": "ep"}),
        ({"ep": 3}, 48, {"num_experts": 64}, {"HL642": "ep"}),
        ({"tp": 3}, 6, {"hidden_size": 4128, "query_groups": None}, {"HL643": "tp"}),
        ({"tp": 4}, 8, {"heads": 12, "query_groups": 6, "hidden_size": 4080}, {"HL644": "tp"}),
        ({"tp": 16}, 64, {}, {"HL644": "tp"}),
        ({"pp": 4, "first_stage_layers": 7, "last_stage_layers": 5, "global_batch": 64}, 64, {}, {}),
        ({"pp": 4, "first_stage_layers": 7, "global_batch": 64}, 64, {}, {"HL658": "first_stage_layers"}),
        ({"pp": 2, "last_stage_layers": 32, "global_batch": 64}, 64, {}, {"HL658": "last_stage_layers"}),
        ({"first_stage_layers": 16}, 64, {}, {"HL658": "first_stage_layers"}),
        ({"first_stage_layers": 16, "last_stage_layers": 16}, 64, {}, {"HL658": "first_stage_layers"}),
        ({"pp": 4, "count_loss": True, "global_batch": 64}, 64, {}, {"HL645": "pp"}),
        ({"pp": 4, "count_loss": True, "global_batch": 64}, 64, {"num_layers": 31}, {}),
        (
            {"pp": 2, "first_stage_layers": 15, "count_loss": True, "global_batch": 64},
            64,
            {},
            {"HL658": "first_stage_layers"},
        ),
        (
            {"pp": 4, "vpp": 3, "count_loss": True, "overlap": True, "global_batch": 64},
            64,
            {"num_layers": 31},
            {"HL646": "vpp"},
        ),
        ({"pp": 2, "vpp": 2, "global_batch": 64}, 64, {}, {"HL647": "vpp"}),
        ({"tp": 4, "sequence_parallel": True}, 64, {"seq_length": 4098}, {"HL649": "seq_length"}),
        ({"tp": 2, "micro_batch": 2, "global_batch": 100}, 64, {}, {"HL652": "global_batch"}),
    ],
)
def test_each_rule(parallel: dict[str, Any], world: int, more: dict[str, Any], expected: dict[str, str]) -> None:
    model = msgspec.structs.replace(MODEL, **more)
    assert broken(Parallel(**parallel), world, model) == expected


def test_other_programs_divide_layers_as_they_like() -> None:
    assert broken(Parallel(pp=5, global_batch=5), 5, even=False) == {}
    few = msgspec.structs.replace(MODEL, num_layers=4)
    assert broken(Parallel(pp=8, global_batch=8), 8, few, even=False) == {"HL645": "pp"}


def test_the_hint_names_a_division_that_works() -> None:
    (found,) = check(
        ParallelLayout(Parallel(pp=16, global_batch=64), 64), ModelShape(num_layers=61), Place, gpus_per_node=8
    )
    assert found.hint == "use a divisor, or set `first_stage_layers: 3`, `last_stage_layers: 2`"


@pytest.mark.parametrize(
    ("sizes", "world", "hint"),
    [
        ({"tp": 8, "pp": 2, "ep": 8}, 16, "set `etp: 1`"),
        ({"tp": 4, "ep": 4}, 8, "set `etp: 2`"),
        ({"ep": 16, "pp": 2}, 48, "set `ep: 8`"),
        ({"tp": 3, "ep": 64}, 15, "set `ep: 1`"),
        ({"pp": 3}, 8, "change ep or etp"),
    ],
)
def test_the_hint_names_sizes_of_experts_that_fit(sizes: dict[str, Any], world: int, hint: str) -> None:
    layout, model = ParallelLayout(Parallel(**sizes), world), ModelShape(num_experts=64)
    (found,) = [one for one in check(layout, model, Place) if one.code == "HL641"]
    assert found.hint == f"{hint}: experts are distributed over the same processes"


def test_tensor_parallelism_over_several_nodes_is_warned_of() -> None:
    assert broken(Parallel(tp=8), gpus_per_node=4) == {"HL654": "tp"}
    assert broken(Parallel(tp=8), gpus_per_node=8) == {}
    assert broken(Parallel(tp=8), gpus_per_node=4, nvlink_nodes=2) == {}
    assert broken(Parallel(tp=8), gpus_per_node=3, nvlink_nodes=2) == {"HL654": "tp"}


SIZES = st.sampled_from([1, 2, 3, 4, 8])
PARALLELS = st.builds(
    Parallel,
    tp=SIZES,
    pp=SIZES,
    cp=SIZES,
    ep=SIZES,
    vpp=st.none() | st.sampled_from([2, 4]),
    sequence_parallel=st.booleans(),
    distributed_optimizer=st.booleans(),
    overlap=st.booleans(),
    micro_batch=SIZES,
)
MODELS = st.builds(
    ModelShape,
    num_layers=st.sampled_from([24, 32, 36]),
    heads=st.sampled_from([12, 16, 24]),
    hidden_size=st.just(6144),
    num_experts=st.none() | st.sampled_from([8, 12]),
    seq_length=st.sampled_from([2048, 3072, 1000]),
)


@given(PARALLELS, MODELS, st.integers(1, 8), st.sampled_from([0, 0, 0, 1]), st.integers(1, 4))
def test_what_passes_can_be_laid_out(
    parallel: Parallel, model: ModelShape, replicas: int, odd: int, steps: int
) -> None:
    world = parallel.tp * parallel.pp * parallel.cp * replicas + odd
    batch = parallel.micro_batch * replicas * parallel.pp * steps + odd
    parallel = msgspec.structs.replace(parallel, global_batch=batch)
    layout = ParallelLayout(parallel, world)
    findings = check(layout, model, Place)
    assert all(found.code.startswith("HL6") and found.hint and found.place for found in findings)
    if errors(findings):
        return
    assert layout.dp * parallel.tp * parallel.pp * parallel.cp == world
    assert layout.microbatches * parallel.micro_batch * layout.dp == layout.global_batch
    assert model.num_layers is not None
    assert model.num_layers % (parallel.pp * (parallel.vpp or 1)) == 0
    assert model.seq_length is not None
    assert model.seq_length % (2 * parallel.cp if parallel.cp > 1 else 1) == 0
    if model.num_experts is not None:
        assert world % (parallel.tp * parallel.ep * parallel.pp) == 0
    written = [name for name, _, value in flags(layout, model) if value]
    assert len(written) == len(set(written))


@given(SIZES, SIZES, SIZES, st.integers(1, 16), st.integers(1, 8))
def test_a_world_made_of_replicas_is_never_refused_for_its_size(tp: int, pp: int, cp: int, dp: int, steps: int) -> None:
    parallel = Parallel(tp=tp, pp=pp, cp=cp, global_batch=dp * steps * pp)
    assert not {"HL640", "HL652", "HL653"} & broken(parallel, tp * pp * cp * dp).keys()


def test_the_verb_refuses_and_warns(config: Config) -> None:
    done = config("megatron", "--world-size", "60", "--tp", "8", "--heads", "12", "--num-layers", "31", "--pp", "2")
    assert (done.code, done.out, done.codes) == (3, "", {"HL640", "HL643", "HL645"})
    done = config("megatron", "--world-size", "16", "--tp", "8", "--gpus-per-node", "4")
    assert (done.code, done.codes) == (0, {"HL654", "HL655"})
    assert config("megatron").code == 2
    assert config("megatron", "--world-size", "8", "--tp", "0").code == 2
