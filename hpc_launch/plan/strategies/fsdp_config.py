"""An FSDP configuration, for Accelerate (YAML, or its environment) or for the Transformers Trainer (JSON).

An `Accelerator()` reads its environment, not a file: `accelerate launch` translates the file. After accelerate 1.15.0,
utils/launch.py (prepare_multi_gpu_env, prepare_deepspeed_cmd_env) and commands/launch.py (the defaults of its options);
a test compares the result with what that function sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from hpc_launch.base.finding_codes import FindingCode, Severity
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.strategy import FullySharded

Reader = Literal["accelerate", "trainer"]

_PRECISIONS = {
    "BFLOAT16": "bf16",
    "BF16": "bf16",
    "FLOAT16": "fp16",
    "FP16": "fp16",
    "FLOAT32": "no",
    "FP32": "no",
    "NONE": "no",
    "NO": "no",
}


_RESHARD = {
    "FULL_SHARD": True,
    "HYBRID_SHARD": True,
    "SHARD_GRAD_OP": False,
    "NO_SHARD": False,
    "HYBRID_SHARD_ZERO2": False,
}
"""FSDP 2's `reshard_after_forward` for each strategy of FSDP 1 (accelerate 1.15.0, commands/to_fsdp2.py)."""


class Fsdp(FullySharded, frozen=True, kw_only=True):
    """A request for an FSDP configuration."""

    mixed_precision: Annotated[
        Literal["bf16", "fp16", "no"],
        Meta(description="Mixed precision of the computation.", extra={"also": _PRECISIONS}),
    ] = "bf16"
    reader: Annotated[
        Reader,
        Meta(
            description="Who reads the file: `accelerate launch --config_file`, or TrainingArguments(fsdp_config=...).",
            extra={"name": "--for"},
        ),
    ] = "accelerate"
    num_machines: Annotated[int, Meta(description="Nodes, for Accelerate.", ge=1)] = 1
    num_processes: Annotated[
        int | None, Meta(description="Processes over all nodes, for Accelerate; its launcher needs the number.", ge=1)
    ] = None


def make(asked: Fsdp) -> tuple[str | None, list[Finding]]:
    """The file; None with findings if the request is inconsistent."""
    findings = _check(asked)
    if errors(findings):
        return None, findings
    if asked.reader == "trainer":
        return json.dumps(trainer_data(asked), indent=2) + "\n", findings
    return _yaml(accelerate_data(asked)), findings


def _check(asked: Fsdp) -> list[Finding]:
    findings: list[Finding] = []

    def fault(code: FindingCode, message: str, option: str, hint: str, severity: Severity = "error") -> None:
        findings.append(Finding(code, message, Place(option), hint, severity))

    strategy = asked.sharding_strategy
    if asked.version == 2 and strategy not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        hint = "use FULL_SHARD or SHARD_GRAD_OP, or --version 1; FSDP 2 takes hybrid sharding from the device mesh"
        fault(FindingCode.STRATEGY_UNSUPPORTED, f"FSDP 2 does not support {strategy}", "--sharding-strategy", hint)
    if asked.version == 1 and asked.reader == "trainer" and strategy != "FULL_SHARD":
        message = f"the Trainer's file cannot select {strategy}: Accelerate's default, FULL_SHARD, takes precedence"
        hint = f"set FSDP_SHARDING_STRATEGY={strategy} in the job's environment, or use --version 2"
        fault(FindingCode.STRATEGY_WITHOUT_EFFECT, message, "--sharding-strategy", hint, "warning")
    if asked.version == 2 and asked.state_dict == "LOCAL_STATE_DICT":
        message = "FSDP 2 does not support LOCAL_STATE_DICT"
        fault(FindingCode.STATE_DICT_UNSUPPORTED, message, "--state-dict", "use SHARDED_STATE_DICT")
    if asked.wrap_class and asked.wrap_policy != "TRANSFORMER_BASED_WRAP":
        message, hint = f"{asked.wrap_policy} does not use layer classes", "use --wrap-policy TRANSFORMER_BASED_WRAP"
        fault(FindingCode.WRAP_POLICY_MISMATCH, message, "--wrap-class", hint)
    if any(not name.isidentifier() for name in asked.wrap_class):
        hint = "give the class name only, such as LlamaDecoderLayer; repeat the option for another class"
        fault(FindingCode.WRAP_POLICY_MISMATCH, "invalid class name", "--wrap-class", hint)
    if asked.min_params is not None and asked.wrap_policy != "SIZE_BASED_WRAP":
        message = f"{asked.wrap_policy} does not use a minimum number of parameters"
        fault(FindingCode.WRAP_POLICY_MISMATCH, message, "--min-params", "use --wrap-policy SIZE_BASED_WRAP")
    if asked.num_processes is not None and asked.num_processes % asked.num_machines:
        message = f"{asked.num_processes} processes cannot be divided evenly over {asked.num_machines} nodes"
        fault(FindingCode.INCONSISTENT_BATCH, message, "--num-processes", "--num-processes is the total over all nodes")
    return findings


def accelerate_data(asked: Fsdp) -> dict[str, Any]:
    """The data of the YAML for `accelerate launch`."""
    fsdp: dict[str, Any] = {"fsdp_version": asked.version}
    if asked.version == 2:
        fsdp["fsdp_reshard_after_forward"] = _RESHARD[asked.sharding_strategy]
    else:
        fsdp["fsdp_sharding_strategy"] = asked.sharding_strategy
    fsdp["fsdp_auto_wrap_policy"] = asked.wrap_policy
    if asked.wrap_class:
        fsdp["fsdp_transformer_layer_cls_to_wrap"] = ",".join(asked.wrap_class)
    if asked.wrap_policy == "SIZE_BASED_WRAP":
        fsdp["fsdp_min_num_params"] = asked.min_params or 100_000_000
    fsdp |= {
        "fsdp_state_dict_type": asked.state_dict,
        "fsdp_offload_params": asked.offload,
        "fsdp_activation_checkpointing": asked.activation_checkpointing,
        "fsdp_cpu_ram_efficient_loading": True,
    }
    if asked.version == 1:
        fsdp |= {
            "fsdp_sync_module_states": True,  # required by efficient loading
            "fsdp_use_orig_params": True,
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_forward_prefetch": False,
        }
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "debug": False,
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "mixed_precision": asked.mixed_precision,
        "num_machines": asked.num_machines,
    }
    if asked.num_processes is not None:
        data["num_processes"] = asked.num_processes
    return data | {
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "main_training_function": "main",
        "fsdp_config": fsdp,
    }


def trainer_data(asked: Fsdp) -> dict[str, Any]:
    """The data of the JSON for the Trainer."""
    strategy = asked.sharding_strategy
    data: dict[str, Any] = {
        "version": asked.version,
        "reshard_after_forward": _RESHARD[strategy] if asked.version == 2 else strategy.lower(),
        "auto_wrap_policy": asked.wrap_policy,
    }
    if asked.wrap_class:
        data["transformer_layer_cls_to_wrap"] = list(asked.wrap_class)
    if asked.wrap_policy == "SIZE_BASED_WRAP":
        data["min_num_params"] = asked.min_params or 100_000_000
    data |= {
        "state_dict_type": asked.state_dict,
        "cpu_offload": asked.offload,
        "activation_checkpointing": asked.activation_checkpointing,
        "cpu_ram_efficient_loading": True,
    }
    if asked.version == 1:
        data |= {
            "sync_module_states": True,
            "use_orig_params": True,
            "backward_prefetch": "BACKWARD_PRE",
            "forward_prefetch": False,
            "limit_all_gathers": True,
        }
    return data


def _yaml(data: dict[str, Any]) -> str:
    """YAML that all readers parse alike: words that YAML 1.1 reads as booleans are quoted."""
    lines = []
    for key, value in data.items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {_scalar(inner)}" for name, inner in value.items())]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if value == "no" else str(value)


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
