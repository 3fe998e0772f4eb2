"""Check a user's DeepSpeed configuration: what DeepSpeed refuses, and what it ignores silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from hpc_launch.base.finding_codes import FindingCode, Severity
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath
from hpc_launch.layouts.parallel_layout import Batch, BatchPlaces, settle
from hpc_launch.plan.strategies.config_file import ConfigFile, Kind, LibraryKeys, check_kinds, check_names, kinds_of
from hpc_launch.plan.strategies.deepspeed_config import example

_ZERO = "zero_optimization"
_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

# What DeepSpeed does not tell about its keys, by dotted name; after deepspeed 0.19.8, runtime/config.py.
_REMOVED = {
    "elasticity": "remove it; set train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps "
    "directly",
    "amp": "use `fp16`, `bf16` or `torch_autocast`",
    "curriculum_learning": "use `data_efficiency.data_sampling.curriculum_learning`",
    "nebula": "remove it: torch.save writes the checkpoints",
    "compression_training": "remove it; compress the model outside DeepSpeed",
    "quantize_training": "remove it; quantize the model outside DeepSpeed",
    "eigenvalue": "remove it: it was a part of `quantize_training`",
    "sparse_gradients": "remove it: gradients of `nn.Embedding(sparse=True)` are reduced sparsely without it",
    "sparse_attention": "remove it; use the attention of PyTorch or of the model",
    "progressive_layer_drop": "remove it; DeepSpeed has no replacement",
    "graph_harvesting": "remove it; the closest option is `compile`",
    "zero_optimization.mics_shard_size": "use `zero_hpz_partition_size` to keep a second copy of the weights within "
    "a node",
    "zero_optimization.mics_hierarchical_params_gather": "use `zero_hpz_partition_size`",
    "zero_optimization.zeropp_loco_param": "remove it: `zero_quantized_gradients` works without it",
}
_DEPRECATED = {
    "bfloat16": "bf16",  # runtime/precision_config.py, BFLOAT16_OLD
    "zero_optimization.cpu_offload": "offload_optimizer: {device: cpu}",
    "zero_optimization.cpu_offload_param": "offload_param: {device: cpu}",
    "zero_optimization.cpu_offload_use_pin_memory": "pin_memory in offload_optimizer and offload_param",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
_CHANGED_DEFAULTS = {  # DeepSpeed pull request 8068 and later
    "gradient_clipping": "1.0 since DeepSpeed 0.19.4, which clips gradients; 0 before",
    "bf16.check_grad_overflow": "true since DeepSpeed 0.19.4, which skips steps with an overflow; false before",
    "zero_optimization.offload_optimizer.pin_memory": "true since DeepSpeed 0.19.5; false before",
    "zero_optimization.offload_param.pin_memory": "true since DeepSpeed 0.19.5; false before",
}


def check(
    file: ConfigFile,
    *,
    replicas: int | None = None,
    hugging_face: bool | None = None,
    keys: LibraryKeys | None = None,
) -> list[Finding]:
    """All findings of a file, in its order. `replicas` is the data-parallel size if known.

    `hugging_face`: whether the Trainer or Accelerate fills in `auto`; None: unknown, so `auto` is a warning.
    `keys`: what the installed release reads; without it, unknown keys are not reported.
    """
    findings = [
        *check_kinds(file, _kinds(), auto=True),
        *_names(file, keys or LibraryKeys({})),
        *_values(file),
        *_auto(file, hugging_face),
        *_batch(file, replicas),
        *_defaults(file),
    ]
    return sorted(findings, key=lambda found: (found.place and found.place.line) or 0)


@cache
def _kinds() -> dict[KeyPath, Kind]:
    """The kind of each value that hpc-launch writes; those of an optimizer or a schedule are its own."""
    kinds = kinds_of(example())
    kept = {path: kind for path, kind in kinds.items() if len(path) == 1 or path[0] not in {"optimizer", "scheduler"}}
    return kept | {("fp16", "loss_scale"): "number"}


def _names(file: ConfigFile, keys: LibraryKeys) -> Iterator[Finding]:
    """Removed, deprecated and unknown keys. One that the release still reads does not count as removed."""
    read = {(*_path(mapping), key) for mapping, known in keys.mappings.items() for key in known}
    removed = {_path(name): hint for name, hint in (dict.fromkeys(keys.removed, "remove it") | _REMOVED).items()}
    deprecated = {_path(name): new for name, new in ({**keys.deprecated} | _DEPRECATED).items()}
    for path in file.find(removed.keys() - read):
        message = f"`{path[-1]}` was removed from {_title(path[:-1])}"
        yield file.finding(FindingCode.REMOVED_CONFIG_KEY, message, path, removed[path])
    for path in file.find(deprecated):
        message, hint = f"`{path[-1]}` is deprecated in {_title(path[:-1])}", f"use `{deprecated[path]}`"
        yield file.finding(FindingCode.DEPRECATED_CONFIG_KEY, message, path, hint, "warning")
    for mapping, known in keys.mappings.items():
        path = _path(mapping)
        old = tuple(str(name[-1]) for name in (*removed, *deprecated) if name[:-1] == path)
        does = "ignores it silently" if mapping in {"", "activation_checkpointing"} else "refuses it"
        yield from check_names(file, path, known, _title(path), f"DeepSpeed {does}", reported=old)


def _path(name: str) -> KeyPath:
    return tuple(name.split(".")) if name else ()


def _title(mapping: KeyPath) -> str:
    return f"`{mapping[-1]}`" if mapping else "the DeepSpeed configuration"


def _values(file: ConfigFile) -> Iterator[Finding]:
    """Rules between values that DeepSpeed's own classes check late or not at all."""
    zero = _mapping(file.data, _ZERO)
    stage = zero.get("stage", 0)
    if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage <= 3:
        message, hint = f"invalid ZeRO stage {stage}", "use 0, 1, 2 or 3"
        yield file.finding(FindingCode.INVALID_CONFIG_VALUE, message, (_ZERO, "stage"), hint)
        return
    if _mapping(file.data, "fp16").get("enabled") is True and _mapping(file.data, "bf16").get("enabled") is True:
        yield file.finding(
            FindingCode.TWO_PRECISIONS, "fp16 and bf16 are both enabled", ("bf16", "enabled"), "disable one"
        )
    for key in ("offload_optimizer", "offload_param"):
        yield from _offload(file, key, _mapping(zero, key), stage)
    path = ("scheduler", "params", "warmup_num_steps")
    warmup = file.get(path)
    if isinstance(warmup, int) and warmup <= 0:
        message = "`warmup_num_steps` must be at least 1 since DeepSpeed 0.19.6"
        yield file.finding(FindingCode.INVALID_SCHEDULE, message, path, "use 1 for almost no warmup")


def _offload(file: ConfigFile, key: str, offload: Mapping[str, Any], stage: int) -> Iterator[Finding]:
    device = offload.get("device", "none")
    path = (_ZERO, key, "device") if offload else (_ZERO, key)
    if device in ("none", None):
        return
    if device not in ("cpu", "nvme"):
        message = f"invalid device {device!r}"
        yield file.finding(FindingCode.INVALID_CONFIG_VALUE, message, path, "use none, cpu or nvme")
    elif key == "offload_param" and stage < 3:
        message = f"DeepSpeed silently ignores `offload_param` at stage {stage}"
        yield file.finding(FindingCode.PARAM_OFFLOAD_NEEDS_STAGE_3, message, path, "use stage 3, or remove it")
    elif key == "offload_optimizer" and (stage == 0 or (device == "nvme" and stage < 3)):
        what = "does nothing" if stage == 0 else "uses CPU memory, not NVMe,"
        message = f"`offload_optimizer` {what} at stage {stage}"
        yield file.finding(FindingCode.OPTIMIZER_OFFLOAD_NOT_POSSIBLE, message, path, "use a higher stage")
    if device == "nvme" and not offload.get("nvme_path"):
        message = f"`{key}` has no NVMe path; DeepSpeed would fail at its first write"
        yield file.finding(FindingCode.NVME_PATH_MISMATCH, message, path, "add `nvme_path`")


def _auto(file: ConfigFile, hugging_face: bool | None) -> Iterator[Finding]:
    hint = "use it with the Trainer or Accelerate, or write the value"
    severity: Severity = "error" if hugging_face is False else "warning"
    for key, value in file.data.items():
        if value == "auto" and not hugging_face:
            message = f"`{key}`: only Hugging Face fills in `auto`"
            yield file.finding(FindingCode.AUTO_NOT_FILLED_IN, message, (key,), hint, severity)


def _batch(file: ConfigFile, replicas: int | None) -> list[Finding]:
    values = [file.data.get(key) for key in _SIZES]
    if "auto" in values:
        return []
    if not any(isinstance(value, int) for value in values):
        message = "neither the global batch size nor the micro batch size is set"
        return [file.finding(FindingCode.INCONSISTENT_BATCH, message, (), "add `train_micro_batch_size_per_gpu`")]
    findings = [
        file.finding(FindingCode.INCONSISTENT_BATCH, f"`{key}` is {value}", (key,), "use 1 or more")
        for key, value in zip(_SIZES, values, strict=True)
        if isinstance(value, int) and value < 1
    ]
    if findings or not all(value is None or isinstance(value, int) for value in values):
        return findings
    return settle(Batch(*values), replicas, BatchPlaces(*(file.place(key) for key in _SIZES)))[1]


def _defaults(file: ConfigFile) -> Iterator[Finding]:
    """Warn where the file relies on a default that changed between releases."""
    for name, change in _CHANGED_DEFAULTS.items():
        path = _path(name)
        holder: Any = file.get(path[:-1])
        if not isinstance(holder, Mapping):
            continue
        inside = len(path) > 1
        off = inside and (holder.get("enabled", True) is False or holder.get("device", "cpu") == "none")
        if (inside and not holder) or off or path[-1] in holder:
            continue
        message = f"`{name}` is not set, and its default changed: {change}"
        yield file.finding(FindingCode.CHANGED_DEFAULT, message, path, "set it explicitly", "warning")


def _mapping(data: Any, key: str) -> Mapping[str, Any]:
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}
