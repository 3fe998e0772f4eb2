"""What DeepSpeed 0.19.8 reads from its configuration file, what it dropped, and what it ignores in silence.

Top level: what runtime/config.py and what it calls look up. The nested tables: the pydantic models of
runtime/zero/config.py, runtime/zero/offload_config.py and runtime/precision_config.py, by their aliases, and
runtime/activation_checkpointing/config.py. A test compares all of them with the installed library.
"""

from __future__ import annotations

from hpc_launch.plan.strategies.keys import Kind, Table

IGNORED = "DeepSpeed ignores it without a word"
REFUSED = "DeepSpeed refuses it"


def _keys(**kinds: str) -> dict[str, Kind]:
    return {key: kind for kind, keys in kinds.items() for key in keys.split()}  # type: ignore[misc]


TOP = Table(
    what="the DeepSpeed configuration",
    keys=_keys(
        int="train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print "
        "vocabulary_size sequence_parallel_size",
        number="gradient_clipping gradient_predivide_factor",
        text="communication_data_type seq_parallel_communication_data_type gradient_allreduce_op log_level",
        bool="managed_gradient_accumulation prescale_gradients disable_allgather dump_state disable_python_gc "
        "wall_clock_breakdown memory_breakdown dataloader_drop_last zero_allow_untested_optimizer "
        "zero_force_ds_cpu_optimizer use_data_before_expert_parallelism",
        object="zero_optimization optimizer scheduler fp16 bf16 torch_autocast activation_checkpointing aio "
        "autotuning checkpoint comms_logger comet compile csv_monitor data_efficiency data_types datastates_ckpt "
        "expert_parallel flops_profiler hybrid_engine pipeline tensor_parallel tensorboard timers wandb "
        "weight_quantization",
    ),
    unknown=IGNORED,
    removed={
        "elasticity": "leave it out; say train_batch_size, train_micro_batch_size_per_gpu and "
        "gradient_accumulation_steps themselves",
        "amp": "use `fp16`, `bf16` or `torch_autocast`",
        "curriculum_learning": "use `data_efficiency.data_sampling.curriculum_learning`",
        "nebula": "leave it out: checkpoints are written by torch.save",
        "compression_training": "leave it out; compress the model outside DeepSpeed",
        "quantize_training": "leave it out; compress the model outside DeepSpeed",
        "eigenvalue": "leave it out: it belonged to `quantize_training`",
        "sparse_gradients": "leave it out: gradients of `nn.Embedding(sparse=True)` are reduced sparsely by themselves",
        "sparse_attention": "leave it out; use the attention of PyTorch or of the model",
        "progressive_layer_drop": "leave it out; nothing replaces it",
        "graph_harvesting": "leave it out; `compile` is what is closest",
    },
    deprecated={"bfloat16": "bf16"},
    auto=True,
)

ZERO = Table(
    what="`zero_optimization`",
    keys=_keys(
        int="stage reduce_bucket_size allgather_bucket_size sub_group_size stage3_prefetch_bucket_size "
        "stage3_param_persistence_threshold stage3_model_persistence_threshold stage3_max_live_parameters "
        "stage3_max_reuse_distance stage3_module_granularity_threshold zero_hpz_partition_size",
        bool="contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions overlap_comm "
        "compute_grad_norm load_from_fp32_weights elastic_checkpoint stage3_gather_16bit_weights_on_model_save "
        "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential ignore_unused_parameters legacy_stage1 "
        "round_robin_gradients parameter_alignment zero_quantized_weights zero_quantized_nontrainable_weights "
        "zero_quantized_gradients memory_efficient_linear pipeline_loading_checkpoint override_module_apply "
        "log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory",
        object="offload_param offload_optimizer zenflow leaf_module",
    ),
    unknown=REFUSED,
    removed={
        "mics_shard_size": "use `zero_hpz_partition_size` to keep a second copy of the weights within a node",
        "mics_hierarchical_params_gather": "use `zero_hpz_partition_size`",
        "zeropp_loco_param": "leave it out: `zero_quantized_gradients` works without it",
    },
    deprecated={
        "cpu_offload": "offload_optimizer: {device: cpu}",
        "cpu_offload_param": "offload_param: {device: cpu}",
        "cpu_offload_use_pin_memory": "pin_memory in offload_optimizer and offload_param",
        "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    },
    auto=True,
)

OFFLOAD_PARAM = Table(
    what="`offload_param`",
    keys=_keys(text="device nvme_path", int="buffer_count buffer_size max_in_cpu", bool="pin_memory"),
    unknown=REFUSED,
    auto=True,
)

OFFLOAD_OPTIMIZER = Table(
    what="`offload_optimizer`",
    keys=_keys(
        text="device nvme_path",
        int="buffer_count",
        bool="pin_memory pipeline_read pipeline_write fast_init super_offload",
        number="ratio cpuadam_cores_perc",
    ),
    unknown=REFUSED,
    auto=True,
)

BF16 = Table(
    what="`bf16`",
    keys=_keys(
        bool="enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"
    ),
    unknown=REFUSED,
    auto=True,
)

FP16 = Table(
    what="`fp16`",
    keys=_keys(
        bool="enabled auto_cast consecutive_hysteresis fp16_master_weights_and_grads",
        int="initial_scale_power loss_scale_window hysteresis min_loss_scale",
        number="loss_scale",
    ),
    unknown=REFUSED,
    auto=True,
)

ACTIVATION_CHECKPOINTING = Table(
    what="`activation_checkpointing`",
    keys=_keys(
        bool="partition_activations contiguous_memory_optimization synchronize_checkpoint_boundary profile "
        "cpu_checkpointing",
        int="number_checkpoints",
    ),
    unknown=IGNORED,
)

NESTED = {
    ("zero_optimization",): ZERO,
    ("zero_optimization", "offload_param"): OFFLOAD_PARAM,
    ("zero_optimization", "offload_optimizer"): OFFLOAD_OPTIMIZER,
    ("bf16",): BF16,
    ("fp16",): FP16,
    ("activation_checkpointing",): ACTIVATION_CHECKPOINTING,
}

CHANGED_DEFAULTS = {
    ("gradient_clipping",): "since 0.19.4 it is 1.0 where it was 0: gradients are clipped",
    ("bf16", "check_grad_overflow"): "since 0.19.4 it is true where it was false: steps with an overflow are skipped",
    ("zero_optimization", "offload_optimizer", "pin_memory"): "since 0.19.5 it is true where it was false",
    ("zero_optimization", "offload_param", "pin_memory"): "since 0.19.5 it is true where it was false",
}
"""Values that mean something else under another release unless they are written down (DeepSpeed PR #8068 and later)."""
