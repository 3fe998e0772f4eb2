"""The keys of FSDP configurations, by who reads them and for which generation of FSDP.

Accelerate 1.15 (commands/launch.py, utils/launch.py, utils/dataclasses.py, commands/config/config_args.py) reads YAML
with a mapping `fsdp_config`; Transformers 5.23 (training_args.py, _process_fsdp_args) reads a JSON mapping. Neither
says a word about a key in there that it does not know.
"""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.plan.strategies.keys import Kind, Table

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
RESHARD = {
    "FULL_SHARD": True,
    "HYBRID_SHARD": True,
    "SHARD_GRAD_OP": False,
    "NO_SHARD": False,
    "HYBRID_SHARD_ZERO2": False,
}
"""What FSDP 2 has in place of a strategy (accelerate/commands/to_fsdp2.py): shard parameters again after forward."""

WRAP_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
PREFETCH = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
STATE_DICTS = ("FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT")


class Key(Struct, frozen=True):
    """A key: the type of its value, the generations of FSDP that it counts for, and the words that it takes."""

    kind: Kind
    versions: tuple[int, ...] = (1, 2)
    words: tuple[str, ...] = ()


ACCELERATE = {
    "fsdp_version": Key("int"),
    "fsdp_sharding_strategy": Key("text", (1,), STRATEGIES),
    "fsdp_reshard_after_forward": Key("any"),
    "fsdp_auto_wrap_policy": Key("text", words=WRAP_POLICIES),
    "fsdp_transformer_layer_cls_to_wrap": Key("text"),
    "fsdp_min_num_params": Key("int"),
    "fsdp_state_dict_type": Key("text", words=STATE_DICTS),
    "fsdp_offload_params": Key("bool"),
    "fsdp_cpu_ram_efficient_loading": Key("bool"),
    "fsdp_activation_checkpointing": Key("bool"),
    "fsdp_activation_checkpointing_offload": Key("bool", (2,)),
    "fsdp_ignored_modules": Key("text"),
    "fsdp_backward_prefetch": Key("text", (1,), PREFETCH),
    "fsdp_forward_prefetch": Key("bool", (1,)),
    "fsdp_use_orig_params": Key("bool", (1,)),
    "fsdp_sync_module_states": Key("bool", (1,)),
}

TRAINER = {
    "version": Key("int"),
    "reshard_after_forward": Key("any"),
    "cpu_offload": Key("bool"),
    "activation_checkpointing": Key("bool"),
    "cpu_ram_efficient_loading": Key("bool"),
    "state_dict_type": Key("text", words=STATE_DICTS),
    "auto_wrap_policy": Key("text", words=WRAP_POLICIES),
    "transformer_layer_cls_to_wrap": Key("any"),
    "min_num_params": Key("int"),
    "xla": Key("bool"),
    "xla_fsdp_v2": Key("bool"),
    "xla_fsdp_settings": Key("object"),
    "xla_fsdp_grad_ckpt": Key("bool"),
    "backward_prefetch": Key("text", (1,), PREFETCH),
    "forward_prefetch": Key("bool", (1,)),
    "use_orig_params": Key("bool", (1,)),
    "sync_module_states": Key("bool", (1,)),
    "limit_all_gathers": Key("bool", (1,)),
}

DROPPED = {
    "backward_prefetch_policy": "the key is `backward_prefetch`; FSDP 2 prefetches by itself and needs none",
    "cuda_graphs": "leave it out: FSDP has no such switch",
    "mixed_precision": "Accelerate takes `mixed_precision: bf16` outside `fsdp_config`, the Trainer --bf16 or --fp16",
    "cpu_offload": "Accelerate's key is `fsdp_offload_params`",
    "offload_params": "the Trainer's key is `cpu_offload`",
    "sharding_strategy": "the Trainer's key is `reshard_after_forward`",
    "limit_all_gathers": "leave it out: it is on, and Accelerate's file cannot change it",
}
"""Names without `fsdp_` that files in use have, which nobody reads; and what does count."""

GENERATION = {
    "sharding_strategy": "FSDP 2 has `reshard_after_forward`: true or false",
    "backward_prefetch": "leave it out: FSDP 2 prefetches by itself",
    "forward_prefetch": "leave it out: Accelerate does not do it with FSDP 2",
    "use_orig_params": "leave it out: FSDP 2 always uses the original parameters",
    "sync_module_states": "leave it out: FSDP 2 needs none",
    "limit_all_gathers": "leave it out: FSDP 2 needs none",
    "activation_checkpointing_offload": "use version 2",
}
"""What to do with a key of the other generation."""

_FILE = (
    "compute_environment debug distributed_type downcast_bf16 enable_cpu_affinity fsdp_config gpu_ids machine_rank "
    "main_process_ip main_process_port main_training_function mixed_precision num_machines num_processes rdzv_backend "
    "same_network tpu_env tpu_name tpu_use_cluster tpu_use_sudo tpu_vm tpu_zone use_cpu commands command_file "
    "deepspeed_config dynamo_config dynamo_backend fp16 fp8_config megatron_lm_config mpirun_config parallelism_config"
)
ACCELERATE_FILE = Table(
    what="the Accelerate configuration",
    keys=dict.fromkeys(_FILE.split(), "any"),
    unknown="Accelerate refuses the whole file",
)
"""The top level: the fields of ClusterConfig, and those that an older form may have."""
