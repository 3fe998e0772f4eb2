"""What the estimators of Megatron-LM and DeepSpeed report for the same training, to compare with."""

from __future__ import annotations

from hpc_launch.estimate.model_states import model_states
from hpc_launch.estimate.training_setup import TrainingSetup, padded_vocabulary, stages
from hpc_launch.model.model_config import ModelConfig


def deepspeed_states(parameters: int, largest_layer: int, setup: TrainingSetup) -> int:
    """GPU bytes of `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs`.

    DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py. ZeRO 2: all parameters in 16 bits, and a share of 18
    bytes each. ZeRO 3: a share of everything, and the largest layer's parameters and gradients. `memory` differs only
    in what DeepSpeed leaves out or simplifies: 2 of ZeRO 3's 20 bytes, prefetched layers, buckets, activations.
    Raises ValueError for other kinds of sharding.
    """
    ranks = setup.layout.world_size
    if setup.sharding == "zero2":
        return 2 * parameters + (0 if setup.offload_optimizer else int(18 * parameters / ranks))
    if setup.sharding != "zero3":
        raise ValueError(f"DeepSpeed has no estimator for {setup.sharding}")
    each = 0 if setup.offload_parameters else 2 if setup.offload_optimizer else 18
    return 4 * largest_layer + int(each * parameters / ranks)


def megatron_report(model: ModelConfig, setup: TrainingSetup) -> tuple[int, int]:
    """Bytes of states and of activations in Megatron's "Theoretical memory footprints".

    Megatron-LM d98e8a64, training/theoretical_memory_usage.py. The states are those of the most loaded stage, as here.
    Its activations are those of a GPT layer with dropout, sequence parallelism and selective recomputation: it counts
    no gate in the MLP, no narrower keys and values, no experts and no context parallelism.
    """
    parallel = setup.layout.parallel
    states = max(sum(model_states(stage, setup)) for stage in stages(model, setup))
    tokens = setup.sequence * parallel.micro_batch
    activations = model.layers * tokens * (18 * model.hidden + 4 * model.ffn)
    activations += parallel.pp * tokens * (8 + model.hidden)
    total = float(activations)
    if parallel.vpp is not None:
        total *= 1 + (parallel.pp - 1) / (parallel.pp * parallel.vpp)
    elif parallel.pp > 1:
        total *= min(1, setup.layout.microbatches / parallel.pp)
    else:
        total += 4 * tokens * (model.hidden + padded_vocabulary(model, setup))
    return states, round(total / parallel.tp)
