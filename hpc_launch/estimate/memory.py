"""Memory that a training needs on each GPU."""

from __future__ import annotations

from hpc_launch.estimate.activations import at_work, kept, sent_and_received
from hpc_launch.estimate.buffers import buffers
from hpc_launch.estimate.logits import loss_peak
from hpc_launch.estimate.memory_estimate import MemoryEstimate
from hpc_launch.estimate.model_states import model_states
from hpc_launch.estimate.pipeline_stages import Stage, layers_in_flight, stages
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.model.model_config import ModelConfig

_MIB = 2**20
_CUDA_CONTEXT = 500 * _MIB
"""CUDA's context with PyTorch's kernels, as nvidia-smi shows it on A100 and later."""
_NCCL_GROUP = 150 * _MIB
"""Buffers of the channels of one communicator (NCCL 2.30: NCCL_BUFFSIZE of 4 MiB per channel and direction)."""
_SLACK = 0.05
"""Reserved above allocated memory: 2 to 9 %, 5 % in the median of SimuMax's runs of Megatron-LM (docs/b200, v1.2)."""
_MOST_SLACK = 0.1
_SLACK_EXPANDABLE = 0.01
"""With expandable segments. None of the published runs reports both sizes."""
_LESS = 0.05
"""How far below the estimate the need may be, even if the allocator can use everything."""
_MORE = {"megatron": 0.05, "pytorch": 0.25, "deepspeed": 0.35}
"""How far above the estimate what is not a state may be. Megatron's layers are known. Other programs also keep copies:
with 0.33, none of 953 labelled runs that ended out of memory is said to fit (tests/estimate/data), with 0.3 one is."""
_UNEVEN_EXPERTS = 0.25
"""The same for experts: they do not all get the same number of tokens."""


def memory(model: ModelConfig, setup: TrainingSetup) -> MemoryEstimate:
    """Memory on a GPU of the pipeline stage that needs the most."""
    return max(memory_by_stage(model, setup), key=lambda estimate: estimate.total)


def memory_by_stage(model: ModelConfig, setup: TrainingSetup) -> tuple[MemoryEstimate, ...]:
    """Memory on a GPU of each pipeline stage."""
    return tuple(_stage(model, setup, stage) for stage in stages(model, setup))


def _stage(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> MemoryEstimate:
    states = model_states(stage, setup)
    saved = _kept(model, setup, stage) * layers_in_flight(stage, setup)
    working = at_work(model, setup, stage.layers[-1]) if stage.layers else 0.0
    loss = loss_peak(model, setup) if stage.last else 0.0
    # The loss and the layers run backward one after the other; the larger of the two is in the peak.
    activations = saved + (working if working > loss else 0)
    logits = loss if loss >= working else 0.0
    held = buffers(model, setup, stage) + sent_and_received(model, setup)
    context = _context(setup)
    moving = activations + logits + held
    slack = (_SLACK_EXPANDABLE if setup.expandable_segments else _SLACK) * (sum(states) + moving)
    most = slack if setup.expandable_segments else _MOST_SLACK * (sum(states) + moving)
    needed = sum(states) + moving + context
    more = _MORE[setup.framework] + (_UNEVEN_EXPERTS if model.experts is not None else 0)
    return MemoryEstimate(
        parameters=states.parameters,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=round(activations),
        logits=round(logits),
        buffers=round(held),
        context=context,
        fragmentation=round(slack),
        low=round(needed * (1 - _LESS)),
        high=round(needed + most + more * moving),
        stage=stage.index,
    )


def _kept(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> float:
    """Of all layers of the stage, which are of two kinds at most."""
    with_experts = sum(model.has_experts(layer) for layer in stage.layers)
    total = 0.0
    for count, kind in ((with_experts, True), (len(stage.layers) - with_experts, False)):
        if count:
            layer = next(layer for layer in stage.layers if model.has_experts(layer) == kind)
            total += count * kept(model, setup, layer)
    return total


def _context(setup: TrainingSetup) -> int:
    parallel = setup.layout.parallel
    sizes = (setup.data_parallel, parallel.tp, parallel.pp, parallel.cp, parallel.ep)
    return _CUDA_CONTEXT + _NCCL_GROUP * sum(size > 1 for size in sizes)
