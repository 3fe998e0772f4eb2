"""The environment that `accelerate launch` sets, for a training that another launcher starts.

An `Accelerator()` reads its environment, not a file: `accelerate launch` translates the file. After accelerate 1.15.0,
utils/launch.py (prepare_multi_gpu_env, prepare_deepspeed_cmd_env) and commands/launch.py (the defaults of its
options); a test compares the result with what that function sets.
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
"""What `accelerate launch` assumes for a key that is left out."""

_NAMES = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}


def for_fsdp(data: Mapping[str, Any]) -> dict[str, str]:
    """The environment for a file with `fsdp_config`; `key_of` names the key that each variable stands for.

    A key that the file lacks has the default of `accelerate launch`; the FSDP plugin's own defaults differ.
    """
    values = dict(_DEFAULTS)
    for key, value in data["fsdp_config"].items():
        if value is not None:
            name = str(key) if str(key).startswith("fsdp_") else f"fsdp_{key}"
            values[name] = str(value).lower() if isinstance(value, bool) else str(value)
    result = {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_MIXED_PRECISION": precision(data.get("mixed_precision"))}
    return result | {_NAMES.get(key, key.upper()): value for key, value in values.items()}


def key_of(variable: str) -> tuple[str, ...]:
    """The path of the key that a variable stands for; () if none."""
    if variable == "ACCELERATE_MIXED_PRECISION":
        return ("mixed_precision",)
    names = {name: key for key, name in _NAMES.items()}
    return ("fsdp_config", names.get(variable, variable.lower())) if variable.startswith("FSDP_") else ()


def precision(word: Any) -> str:
    """Accelerate's word for a precision; `no` is full precision."""
    return "no" if word in (None, False, "fp32", "tf32") else str(word)
