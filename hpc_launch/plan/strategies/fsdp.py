"""An FSDP configuration, for `accelerate launch` (YAML) or for the Transformers Trainer (JSON), version 1 or 2."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from msgspec import Meta

from hpc_launch.base.findings import Finding, errors
from hpc_launch.plan.strategies.fsdp_keys import RESHARD
from hpc_launch.plan.strategies.keys import flag
from hpc_launch.spec.strategy import FullySharded

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


class Fsdp(FullySharded, frozen=True, kw_only=True):
    """What an FSDP configuration shall say."""

    mixed_precision: Annotated[
        Literal["bf16", "fp16", "no"],
        Meta(description="The number format of the computation.", extra={"also": _PRECISIONS}),
    ] = "bf16"
    reader: Annotated[
        Literal["accelerate", "trainer"],
        Meta(
            description="Who reads the file: `accelerate launch --config_file`, or TrainingArguments(fsdp_config=...).",
            extra={"name": "--for"},
        ),
    ] = "accelerate"
    num_machines: Annotated[int, Meta(description="Nodes, for Accelerate.", ge=1)] = 1
    num_processes: Annotated[
        int | None, Meta(description="Processes over all nodes, for Accelerate; its launcher has to know.", ge=1)
    ] = None


def make(asked: Fsdp) -> tuple[str | None, list[Finding]]:
    """The file; None with findings where the request does not hold together."""
    findings = _check(asked)
    if errors(findings):
        return None, findings
    if asked.reader == "trainer":
        return json.dumps(_trainer(asked), indent=2) + "\n", findings
    return _yaml(accelerate_data(asked)), findings


def _check(asked: Fsdp) -> list[Finding]:
    findings = []
    strategy, place = asked.sharding_strategy, flag("--sharding-strategy")
    if asked.version == 2 and strategy not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        hint = "with FSDP 2 the training's device mesh decides that; use FULL_SHARD or SHARD_GRAD_OP, or --version 1"
        findings.append(Finding("HL627", f"FSDP 2 has no {strategy}", place, hint))
    if asked.version == 1 and asked.reader == "trainer" and strategy != "FULL_SHARD":
        message = f"the Trainer's file cannot ask for {strategy}: Accelerate prefers its own default, FULL_SHARD"
        hint = f"set FSDP_SHARDING_STRATEGY={strategy} in the job's environment as well, or use --version 2"
        findings.append(Finding("HL628", message, place, hint, "warning"))
    if asked.version == 2 and asked.state_dict == "LOCAL_STATE_DICT":
        message = "FSDP 2 has no LOCAL_STATE_DICT"
        findings.append(Finding("HL625", message, flag("--state-dict"), "use SHARDED_STATE_DICT"))
    if asked.wrap_class and asked.wrap_policy != "TRANSFORMER_BASED_WRAP":
        message = f"{asked.wrap_policy} does not look at layer classes"
        findings.append(Finding("HL623", message, flag("--wrap-class"), "use --wrap-policy TRANSFORMER_BASED_WRAP"))
    if any(not name.isidentifier() for name in asked.wrap_class):
        hint = "the name of the class alone, such as LlamaDecoderLayer; repeat the option for another"
        findings.append(Finding("HL623", "a layer class has to be a name", flag("--wrap-class"), hint))
    if asked.min_params is not None and asked.wrap_policy != "SIZE_BASED_WRAP":
        message = f"{asked.wrap_policy} does not count parameters"
        findings.append(Finding("HL623", message, flag("--min-params"), "use --wrap-policy SIZE_BASED_WRAP"))
    if asked.num_processes is not None and asked.num_processes % asked.num_machines:
        message = f"{asked.num_processes} processes do not spread evenly over {asked.num_machines} nodes"
        hint = "it is the number over all nodes"
        findings.append(Finding("HL610", message, flag("--num-processes"), hint))
    return findings


def accelerate_data(asked: Fsdp) -> dict[str, Any]:
    """What the YAML for `accelerate launch` holds."""
    fsdp: dict[str, Any] = {"fsdp_version": asked.version}
    if asked.version == 2:
        fsdp["fsdp_reshard_after_forward"] = RESHARD[asked.sharding_strategy]
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
            "fsdp_sync_module_states": True,  # efficient loading needs it
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


def _trainer(asked: Fsdp) -> dict[str, Any]:
    strategy = asked.sharding_strategy
    data: dict[str, Any] = {
        "version": asked.version,
        "reshard_after_forward": RESHARD[strategy] if asked.version == 2 else strategy.lower(),
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
    """YAML that every reader takes alike: words that YAML 1.1 would take for a truth value are quoted."""
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
