"""What the estimators of Megatron-LM and DeepSpeed report for the same training, to compare with."""

from __future__ import annotations

from hpc_launch.estimate.training_setup import TrainingSetup


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
