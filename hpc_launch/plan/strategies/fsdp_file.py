"""FSDP's configuration, written and checked: for Accelerate (YAML, or its environment) or for the Trainer (JSON).

An `Accelerator()` reads its environment, not a file: `accelerate launch` translates the file. After accelerate 1.15.0,
utils/launch.py (prepare_multi_gpu_env, prepare_deepspeed_cmd_env) and commands/launch.py (the defaults of its options);
a test compares the result with what that function sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

import yaml
from msgspec import Meta

from hpc_launch.base.findings import Finding, FindingCode, Place, Severity, errors
from hpc_launch.job.launcher import FullySharded
from hpc_launch.plan.strategies.config_file import ConfigFile, Kind, LibraryKeys, check_names, fits, kinds_of

Reader = Literal["accelerate", "trainer"]

_PRECISIONS = {
    **dict.fromkeys(("BFLOAT16", "BF16"), "bf16"),
    **dict.fromkeys(("FLOAT16", "FP16"), "fp16"),
    **dict.fromkeys(("FLOAT32", "FP32", "NONE", "NO"), "no"),
}


class Fsdp(FullySharded, frozen=True, kw_only=True):
    """A request for an FSDP configuration."""

    mixed_precision: Annotated[Literal["bf16", "fp16", "no"], Meta(extra={"also": _PRECISIONS})] = "bf16"
    """Mixed precision of the computation."""
    reader: Annotated[Reader, Meta(extra={"name": "--for"})] = "accelerate"
    """Who reads the file: `accelerate launch --config_file`, or TrainingArguments(fsdp_config=...)."""
    nodes: Annotated[int, Meta(ge=1)] = 1
    """Nodes, for Accelerate."""
    world_size: Annotated[int | None, Meta(ge=1)] = None
    """Processes over all nodes, for Accelerate; its launcher needs the number."""


FIELDS = {
    "version": "version",
    "sharding_strategy": "sharding_strategy",
    "reshard_after_forward": "sharding_strategy",
    "auto_wrap_policy": "wrap_policy",
    "transformer_layer_cls_to_wrap": "wrap_class",
    "min_num_params": "min_params",
    "state_dict_type": "state_dict",
    "offload_params": "offload",
    "cpu_offload": "offload",
    "activation_checkpointing": "activation_checkpointing",
}
"""The field of the request behind a value of the file."""


def make(asked: Fsdp, place: Callable[[str], Place]) -> tuple[str | None, list[Finding]]:
    """The file; None with findings if the request is inconsistent. `place`: that of a field of the request."""
    findings = _check(asked, place)
    if errors(findings):
        return None, findings
    if asked.reader == "trainer":
        return json.dumps(fsdp_values(asked), indent=2) + "\n", findings
    return yaml.safe_dump(accelerate_data(asked), sort_keys=False), findings


def _check(asked: Fsdp, place: Callable[[str], Place]) -> list[Finding]:
    findings: list[Finding] = []

    def fault(code: FindingCode, message: str, field: str, hint: str, severity: Severity = "error") -> None:
        findings.append(Finding(code, message, place(field), hint, severity))

    strategy = asked.sharding_strategy
    if asked.version == 2 and strategy not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        hint = "use FULL_SHARD or SHARD_GRAD_OP, or version 1; FSDP 2 takes hybrid sharding from the device mesh"
        fault(FindingCode.STRATEGY_UNSUPPORTED, f"FSDP 2 does not support {strategy}", "sharding_strategy", hint)
    if asked.version == 1 and asked.reader == "trainer" and strategy != "FULL_SHARD":
        message = f"the Trainer's file cannot select {strategy}: Accelerate's default, FULL_SHARD, takes precedence"
        hint = f"set FSDP_SHARDING_STRATEGY={strategy} in the job's environment, or use version 2"
        fault(FindingCode.STRATEGY_WITHOUT_EFFECT, message, "sharding_strategy", hint, "warning")
    if asked.version == 2 and asked.state_dict == "LOCAL_STATE_DICT":
        message = "FSDP 2 does not support LOCAL_STATE_DICT"
        fault(FindingCode.STATE_DICT_UNSUPPORTED, message, "state_dict", "use SHARDED_STATE_DICT")
    wrap = FindingCode.WRAP_POLICY_MISMATCH
    if asked.wrap_class and asked.wrap_policy != "TRANSFORMER_BASED_WRAP":
        hint = "use the wrap policy TRANSFORMER_BASED_WRAP"
        fault(wrap, f"{asked.wrap_policy} does not use layer classes", "wrap_class", hint)
    if any(not name.isidentifier() for name in asked.wrap_class):
        hint = "give the class name only, such as LlamaDecoderLayer, and each class by itself"
        fault(wrap, "invalid class name", "wrap_class", hint)
    if asked.min_params is not None and asked.wrap_policy != "SIZE_BASED_WRAP":
        message = f"{asked.wrap_policy} does not use a minimum number of parameters"
        fault(wrap, message, "min_params", "use the wrap policy SIZE_BASED_WRAP")
    if asked.world_size is not None and asked.world_size % asked.nodes:
        message = f"{asked.world_size} processes cannot be divided evenly over {asked.nodes} nodes"
        fault(FindingCode.INCONSISTENT_BATCH, message, "world_size", "give the total over all nodes")
    return findings


def fsdp_values(asked: Fsdp) -> dict[str, Any]:
    """The values of FSDP, named as the request's reader names them without the prefix `fsdp_`."""
    trainer, strategy = asked.reader == "trainer", asked.sharding_strategy
    data: dict[str, Any] = {"version": asked.version}
    if asked.version == 2:
        # As accelerate 1.15.0 translates the strategies of FSDP 1 (commands/to_fsdp2.py).
        data["reshard_after_forward"] = strategy in {"FULL_SHARD", "HYBRID_SHARD"}
    elif trainer:
        data["reshard_after_forward"] = strategy.lower()
    else:
        data["sharding_strategy"] = strategy
    data["auto_wrap_policy"] = asked.wrap_policy
    if asked.wrap_class:
        data["transformer_layer_cls_to_wrap"] = list(asked.wrap_class) if trainer else ",".join(asked.wrap_class)
    if asked.wrap_policy == "SIZE_BASED_WRAP":
        data["min_num_params"] = asked.min_params or 100_000_000
    data |= {
        "state_dict_type": asked.state_dict,
        "cpu_offload" if trainer else "offload_params": asked.offload,
        "activation_checkpointing": asked.activation_checkpointing,
        "cpu_ram_efficient_loading": True,
    }
    if asked.version == 1:
        data |= {
            "sync_module_states": True,  # required by efficient loading
            "use_orig_params": True,
            "backward_prefetch": "BACKWARD_PRE",
            "forward_prefetch": False,
            **({"limit_all_gathers": True} if trainer else {}),
        }
    return data


def accelerate_data(asked: Fsdp) -> dict[str, Any]:
    """The data of the YAML for `accelerate launch`."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "debug": False,
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "mixed_precision": asked.mixed_precision,
        "num_machines": asked.nodes,
        **({"num_processes": asked.world_size} if asked.world_size is not None else {}),
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "main_training_function": "main",
        "fsdp_config": {f"fsdp_{key}": value for key, value in fsdp_values(asked).items()},
    }


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


def reader_of(file: ConfigFile) -> Reader:
    """Who reads a file: Accelerate's holds the FSDP keys in the mapping `fsdp_config`."""
    return "accelerate" if {"fsdp_config", "distributed_type", "compute_environment"} & file.data.keys() else "trainer"


def check(file: ConfigFile, *, reader: Reader | None = None, keys: LibraryKeys | None = None) -> list[Finding]:
    """All findings of a file, in its order. `keys`: what the installed release reads; without it, types only.

    Keys may have the prefix `fsdp_`: Accelerate adds it, the Trainer strips it.
    """
    reader = reader or reader_of(file)
    who, name = ("Accelerate", "fsdp_config") if reader == "accelerate" else ("the Trainer", "")
    silent, whole = f"{who} ignores it silently", "Accelerate refuses the whole file"
    findings = [*check_names(file, keys or {}, {name: silent, "*": whole}, "fsdp_")]
    values: Any = file.data
    if reader == "accelerate":
        findings += _head(file)
        values = file.data.get("fsdp_config")
    for key, value in values.items() if isinstance(values, dict) else ():
        message, hint = _fault(str(key).removeprefix("fsdp_"), value, reader)
        if message:
            path = (*([name] if name else []), key)
            findings.append(file.finding(FindingCode.INVALID_CONFIG_VALUE, f"`{key}` {message}", path, hint))
    return sorted(findings, key=lambda found: (found.place and found.place.line) or 0)


def _head(file: ConfigFile) -> Iterator[Finding]:
    """What Accelerate's file must have outside the FSDP keys."""
    wrong = FindingCode.INVALID_CONFIG_VALUE
    if "distributed_type" not in file.data:
        message = "`distributed_type` is missing; Accelerate refuses the file"
        yield file.finding(wrong, message, (), "add `distributed_type: FSDP`")
    if not isinstance(file.data.get("fsdp_config"), dict):
        message = "the mapping `fsdp_config` is missing"
        yield file.finding(wrong, message, ("fsdp_config",), "put the FSDP keys under it")
    word = file.data.get("mixed_precision")
    if word not in (None, "no", "fp16", "bf16", "fp8", False):
        message, hint = f"invalid mixed precision `{word}`", "use bf16, fp16, fp8 or 'no'"
        yield file.finding(wrong, message, ("mixed_precision",), hint)


@cache
def _kinds(reader: Reader) -> dict[str, Kind]:
    """The kind of each value that hpc-launch writes."""
    requests = (
        Fsdp(version=version, wrap_policy="SIZE_BASED_WRAP", wrap_class=["Layer"], reader=reader) for version in (1, 2)
    )
    kinds = {str(path[-1]): kind for asked in requests for path, kind in kinds_of(fsdp_values(asked)).items()}
    return kinds | {"reshard_after_forward": "any"}


_HINTS = get_type_hints(Fsdp)
_WORDS = {
    "sharding_strategy": get_args(_HINTS["sharding_strategy"]),
    "auto_wrap_policy": get_args(_HINTS["wrap_policy"]),
    "state_dict_type": get_args(_HINTS["state_dict"]),
}


def _fault(name: str, value: Any, reader: Reader) -> tuple[str, str | None]:
    """What is wrong with a value, and a hint; '' if nothing is."""
    kind, words = _kinds(reader).get(name, "any"), _WORDS.get(name)
    if name == "version" and str(value) not in {"1", "2"}:
        return f"must be 1 or 2, not {value!r}", None
    if kind == "bool" and isinstance(value, str) and value.lower() in {"true", "false"}:
        return "", None  # both readers accept the word
    if kind == "int" and name != "version" and not isinstance(value, int | None):
        return f"must be a whole number, not {value!r}", "write all digits: 100000000"
    if not fits(value, kind):
        return f"must be {'true or false' if kind == 'bool' else 'a string'}, not {value!r}", None
    if words and value is not None and str(value).upper() not in words:
        return f"cannot be {value!r}", f"use one of {', '.join(words)}"
    return "", None
