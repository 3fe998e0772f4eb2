"""What `accelerate launch` would set for the training that it starts, for one that another launcher starts.

An `Accelerator()` reads its environment and no file: `accelerate launch` turns the one into the other. After
accelerate 1.15.0, utils/launch.py (prepare_multi_gpu_env, prepare_deepspeed_cmd_env) and commands/launch.py (the
defaults of its options); a test compares this with what that function sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEFAULTS = {
    "fsdp_version": "1",
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": "100000000",
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
    "fsdp_activation_checkpointing_offload": "false",
}
"""What the options of `accelerate launch` are where its file is silent; the plug-in's own defaults differ."""

_NAMES = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}


def for_fsdp(data: Mapping[str, Any]) -> dict[str, str]:
    """The environment for a file with `fsdp_config`; each variable by its key there (see `key_of`)."""
    fsdp = {_prefixed(str(key)): value for key, value in data["fsdp_config"].items()}
    values = _DEFAULTS | {key: _spelt(value) for key, value in fsdp.items() if value is not None}
    result = {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_MIXED_PRECISION": precision(data.get("mixed_precision"))}
    return result | {_NAMES.get(key, key.upper()): value for key, value in values.items()}


def key_of(variable: str) -> tuple[str, ...]:
    """The path of the key in the file that a variable stands for; () for none."""
    if variable == "ACCELERATE_MIXED_PRECISION":
        return ("mixed_precision",)
    names = {name: key for key, name in _NAMES.items()}
    return ("fsdp_config", names.get(variable, variable.lower())) if variable.startswith("FSDP_") else ()


def precision(word: Any) -> str:
    """Accelerate's word for a number format; `no` is the full one."""
    return "no" if word in (None, False, "fp32", "tf32") else str(word)


def _prefixed(key: str) -> str:
    return key if key.startswith("fsdp_") else f"fsdp_{key}"


def _spelt(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
