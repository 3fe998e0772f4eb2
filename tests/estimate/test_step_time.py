"""The estimated time of a step, against published measurements."""

import math
from collections import defaultdict
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpc_launch.estimate.gpu import Gpu
from hpc_launch.estimate.step_time import STEP_OVERHEAD, step_time, training_speed
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import parameters
from hpc_launch.prepare.job_plan import MORE_REPLICAS, OTHER_LAYOUT
from tests.estimate.measured_steps import (
    TORCHTITAN,
    MeasuredStep,
    aleph_alpha,
    gpu,
    model_flops,
    nanotron,
    spearman,
    torchtitan,
)

_LEAST_RUNS = 10
"""A rank correlation of fewer runs says little."""
MODEL = TORCHTITAN["70"]


def _correlation(runs: list[MeasuredStep]) -> float:
    """Of utilization, not of seconds: these would correlate because models and numbers of GPUs differ."""
    estimated = [run.utilization(run.estimate()) for run in runs]
    return spearman(estimated, [run.utilization(run.step_s) for run in runs])


@pytest.mark.parametrize("source", [torchtitan, nanotron])
def test_ranks_measured_layouts(source: object) -> None:
    runs = list(torchtitan() if source is torchtitan else nanotron())
    assert len(runs) in (21, 26)
    assert _correlation(runs) >= 0.8


def test_ranks_measured_layouts_of_each_model() -> None:
    """Aleph Alpha's sweep: layouts of one model on the same GPUs. No correlation below 0.8."""
    sheets = defaultdict(list)
    for run in aleph_alpha():
        sheets[run.dataset].append(run)
    correlations = {name: _correlation(runs) for name, runs in sheets.items() if len(runs) >= _LEAST_RUNS}
    assert len(correlations) == 9
    assert {name: value for name, value in correlations.items() if value < 0.8} == {}


def test_the_speed_of_a_measured_run_in_tokens_and_mfu() -> None:
    """Six operations for each of the 70 billion parameters, and a little more for the attention."""
    run = next(one for one in torchtitan() if one.model == MODEL)
    speed = training_speed(run.model, run.setup, run.gpu, run.step_s)
    assert speed.tokens_s == pytest.approx(run.setup.layout.global_batch * run.setup.sequence / run.step_s)
    assert 0.2 < speed.mfu < 0.6
    operations = speed.mfu * run.gpu.flops * run.setup.layout.world_size / speed.tokens_s
    assert 1 < operations / (6 * parameters(run.model).total) < 1.1


def test_seconds_are_of_the_right_size() -> None:
    """Without calibration, too: the median run took 0.9 to 1.5 times as long as estimated, and none half as long."""
    for source in (torchtitan(), nanotron(), aleph_alpha()):
        ratios = sorted(run.step_s / run.estimate() for run in source)
        assert 0.9 < ratios[len(ratios) // 2] < 1.5
        assert ratios[0] > 0.5


def _setup(parallel: Parallel, world: int = 64, **more: object) -> TrainingSetup:
    setup = TrainingSetup(layout=ParallelLayout(parallel, world), sequence=8192, framework="megatron")
    return replace(setup, **more)


def test_bubble() -> None:
    """(PP - 1) / (VPP × M) of the work of all micro batches (arXiv 2104.04473, section 2.2)."""
    card = gpu("h100", 80 * 1024)
    share = {}
    for virtual in (None, 5):
        sizes = Parallel(tp=8, pp=8, vpp=virtual, overlap=virtual is not None)
        short, long = (step_time(MODEL, _setup(replace(sizes, global_batch=batch)), card) for batch in (32, 64))
        share[virtual] = (2 * short - long - STEP_OVERHEAD) / (long - short)
    assert share[None] == pytest.approx(7 / 32, rel=0.1)
    assert share[5] == pytest.approx(share[None] / 5, rel=0.1)


def test_tensor_parallelism_over_nodes_costs_more() -> None:
    card = gpu("h100", 80 * 1024)
    free = replace(card, node_bandwidth=math.inf, network_bandwidth=math.inf)

    def of_a_batch(size: int, links: Gpu) -> float:
        short, long = (step_time(MODEL, _setup(Parallel(tp=size, global_batch=batch)), links) for batch in (64, 128))
        return long - short

    inside, across = (of_a_batch(size, card) - of_a_batch(size, free) for size in (8, 16))
    assert across > 2 * inside


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "zero1", "zero3", "fsdp2", "distributed_optimizer"]),
    st.sampled_from(["network_bandwidth", "node_bandwidth", "flops", "memory_bandwidth"]),
)
def test_faster_hardware_is_never_slower(tp: int, pp: int, cp: int, sharding: str, figure: str) -> None:
    card = gpu("a100", 80 * 1024)
    setup = _setup(Parallel(tp=tp, pp=pp, cp=cp, global_batch=64), sharding=sharding)
    slow, fast = (step_time(MODEL, setup, replace(card, **{figure: getattr(card, figure) * n})) for n in (1, 2))
    assert 0 < fast <= slow
    assert model_flops(MODEL, setup) / (slow * card.flops * 64) < 1
    recomputing = step_time(MODEL, replace(setup, recompute="full"), card)
    assert recomputing > slow


@pytest.mark.parametrize(("alike", "factor"), [(True, MORE_REPLICAS), (False, OTHER_LAYOUT)])
def test_how_well_a_run_predicts_one_with_another_number_of_gpus(*, alike: bool, factor: float) -> None:
    """Of all pairs of published runs that differ in their GPUs, 9 of 10 lie within the factor that `plan` states."""

    def model_parts(run: MeasuredStep) -> tuple[object, ...]:
        parallel = run.setup.layout.parallel
        return parallel.tp, parallel.pp, parallel.cp, run.setup.recompute

    errors = []
    for before, after in permutations([*torchtitan(), *nanotron()], 2):
        same = [
            (run.dataset, run.model, run.setup.sequence, run.setup.precision, run.setup.compiled)
            for run in (before, after)
        ]
        if same[0] != same[1] or before.setup.layout.world_size == after.setup.layout.world_size:
            continue
        if not alike or model_parts(before) == model_parts(after):
            predicted = before.step_s * after.estimate() / before.estimate()
            errors.append(abs(math.log(predicted / after.step_s)))
    assert len(errors) > 40
    assert sorted(errors)[int(0.9 * len(errors))] <= math.log(factor * 1.005)
