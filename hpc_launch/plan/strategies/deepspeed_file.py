"""DeepSpeed's configuration: written with every key explicit, so that it means the same in every release, and checked.

Written for DeepSpeed 0.19.8; releases from 0.17 on read the same keys. What is written passes the check of a user's own
file: one set of rules holds for the options of `config`, for `strategy:` and for files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from msgspec import Meta

from hpc_launch.base.findings import Finding, FindingCode, Place, Severity, errors
from hpc_launch.job.document import KeyPath
from hpc_launch.job.launcher import Device, ZeroOptions
from hpc_launch.layouts.parallel_layout import Batch, settle
from hpc_launch.plan.strategies.config_file import (
    ConfigFile,
    Kind,
    LibraryKeys,
    check_kinds,
    check_names,
    kinds_of,
    path_of,
)

AUTO = "auto"


class DeepSpeed(ZeroOptions, frozen=True, kw_only=True):
    """A request for a DeepSpeed configuration. Bucket sizes are in elements, not bytes."""

    zero_stage: Literal[0, 1, 2, 3] = 2
    """What ZeRO shards: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters."""
    bf16: bool = False
    """Train in bfloat16."""
    fp16: bool = False
    """Train in float16 with dynamic loss scaling."""
    world_size: Annotated[int | None, Meta(ge=1)] = None
    """Total number of processes; needed to check the batch sizes."""
    model_parallel: Annotated[int, Meta(ge=1)] = 1
    """Processes that share one replica of the model (tensor × pipeline × sequence)."""
    auto: bool = False
    """Write `auto` where the Transformers Trainer fills in its own arguments. Only Hugging Face supports `auto`."""


_ZERO = "zero_optimization"
_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
FIELDS = {
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gradient_clipping": "gradient_clipping",
    "bf16.enabled": "bf16",
    "fp16.enabled": "fp16",
    "zero_optimization.stage": "zero_stage",
    "zero_optimization.overlap_comm": "overlap",
    "zero_optimization.reduce_bucket_size": "buckets",
    "zero_optimization.allgather_bucket_size": "buckets",
    "zero_optimization.offload_optimizer.device": "offload_optimizer",
    "zero_optimization.offload_param.device": "offload_param",
    "zero_optimization.offload_optimizer.nvme_path": "nvme_path",
    "zero_optimization.offload_param.nvme_path": "nvme_path",
}
"""The field of the request behind a value of the file, by its dotted name."""


def make(asked: DeepSpeed, place: Callable[[str], Place], *, by_width: bool = True) -> tuple[str | None, list[Finding]]:
    """The file as JSON; None with findings if the request is inconsistent. `place`: that of a field of the request.

    `by_width`: whether the reader of an `auto` file may take three sizes from the model's width; Accelerate fails for
    models that do not tell it.
    """
    findings: list[Finding] = []
    if asked.nvme_path is not None and "nvme" not in {asked.offload_optimizer, asked.offload_param}:
        message, hint = "nothing is offloaded to NVMe", "remove it, or offload the optimizer or the parameters to nvme"
        findings.append(Finding(FindingCode.NVME_PATH_MISMATCH, message, place("nvme_path"), hint))
    batch = _batch(asked, place, findings)
    data = _configuration(asked, batch or Batch(1, 1, 1), by_width=asked.auto and by_width)
    findings += _values(ConfigFile("", data, {path_of(key): place(field) for key, field in FIELDS.items()}))
    return (None if errors(findings) else json.dumps(data, indent=2) + "\n"), findings


def _batch(asked: DeepSpeed, place: Callable[[str], Place], findings: list[Finding]) -> Batch | None:
    if asked.world_size is not None and asked.world_size % asked.model_parallel:
        message = f"{asked.world_size} processes are not divisible by a model parallel size of {asked.model_parallel}"
        findings.append(Finding(FindingCode.INCONSISTENT_BATCH, message, place("world_size"), "change one of the two"))
    given = Batch(asked.global_batch, asked.micro_batch, asked.gradient_accumulation)
    if asked.auto and asked.global_batch is None and asked.micro_batch is None:
        return given  # the Trainer fills in the rest
    replicas = None if asked.world_size is None else asked.world_size // asked.model_parallel
    places = [place(FIELDS[key]) for key in _SIZES]
    batch, faults = settle(given, replicas, places)
    findings += faults
    return batch


def _configuration(asked: DeepSpeed, batch: Batch, *, by_width: bool) -> dict[str, Any]:
    unknown = AUTO if asked.auto else None
    sizes = dict(zip(_SIZES, (batch.train, batch.micro, batch.accumulation), strict=True))
    clipping = asked.gradient_clipping
    data: dict[str, Any] = {key: value or unknown for key, value in sizes.items() if value or unknown}
    data["gradient_clipping"] = clipping if clipping is not None else (unknown or 1.0)
    data["steps_per_print"] = 10
    data["wall_clock_breakdown"] = False
    if asked.zero_stage:
        # Without this, DeepSpeed refuses an optimizer that the training creates.
        data["zero_allow_untested_optimizer"] = True
    if asked.offload_optimizer != "none":
        # True refuses all optimizers but DeepSpeed's CPU optimizer; the training's own is slow, but correct.
        data["zero_force_ds_cpu_optimizer"] = False
    # `auto` takes the precision from the Trainer's arguments.
    bf16, fp16 = (AUTO, AUTO) if asked.auto and not (asked.bf16 or asked.fp16) else (asked.bf16, asked.fp16)
    data["bf16"] = {"enabled": bf16, "immediate_grad_update": False, "check_grad_overflow": True}
    data["fp16"] = {
        "enabled": fp16,
        "auto_cast": False,
        "loss_scale": 0,  # 0: dynamic
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    }
    data[_ZERO] = _zero(asked, by_width=by_width)
    return data


def _zero(asked: DeepSpeed, *, by_width: bool) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": asked.zero_stage}
    if asked.zero_stage:
        zero |= {
            "overlap_comm": asked.overlap,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "reduce_bucket_size": AUTO if by_width and asked.zero_stage == 3 else asked.buckets,
            "allgather_partitions": True,
            "allgather_bucket_size": asked.buckets,
            "round_robin_gradients": False,
        }
    if asked.zero_stage == 3:
        zero |= {
            "sub_group_size": 1_000_000_000,
            "stage3_prefetch_bucket_size": AUTO if by_width else 50_000_000,
            "stage3_param_persistence_threshold": AUTO if by_width else 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_gather_16bit_weights_on_model_save": True,
            "zero_hpz_partition_size": 1,
            "zero_quantized_weights": False,
            "zero_quantized_gradients": False,
        }
    if asked.offload_optimizer != "none":
        zero["offload_optimizer"] = _offload(asked.offload_optimizer, asked.nvme_path, buffer_count=4)
        zero["offload_optimizer"] |= {"pipeline_read": False, "pipeline_write": False, "fast_init": False, "ratio": 1.0}
    if asked.offload_param != "none":
        zero["offload_param"] = _offload(asked.offload_param, asked.nvme_path, buffer_count=5)
        zero["offload_param"] |= {"buffer_size": 100_000_000, "max_in_cpu": 1_000_000_000}
    return zero


def _offload(device: Device, nvme_path: str | None, *, buffer_count: int) -> dict[str, Any]:
    path = {"nvme_path": nvme_path} if device == "nvme" and nvme_path is not None else {}
    return {"device": device, **path, "pin_memory": True, "buffer_count": buffer_count}


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
    silent = "DeepSpeed ignores it silently"
    findings = [
        *check_kinds(file, _kinds(), auto=True),
        *check_names(file, keys or {}, {"": silent, "activation_checkpointing": silent, "*": "DeepSpeed refuses it"}),
        *_values(file),
        *_auto(file, hugging_face),
        *_check_batch(file, replicas),
    ]
    return sorted(findings, key=lambda found: (found.place and found.place.line) or 0)


@cache
def _kinds() -> dict[KeyPath, Kind]:
    """The kind of each value that hpc-launch ever writes."""
    asked = DeepSpeed(zero_stage=3, offload_optimizer="nvme", offload_param="nvme", nvme_path="/nvme")
    return kinds_of(_configuration(asked, Batch(1, 1, 1), by_width=False)) | {("fp16", "loss_scale"): "number"}


def _values(file: ConfigFile) -> Iterator[Finding]:
    """Rules between values that DeepSpeed checks late or not at all."""
    zero = _mapping(file, _ZERO)
    stage = zero.get("stage", 0)
    if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage <= 3:
        message, hint = f"invalid ZeRO stage {stage}", "use 0, 1, 2 or 3"
        yield file.finding(FindingCode.INVALID_CONFIG_VALUE, message, (_ZERO, "stage"), hint)
        return
    if _mapping(file, "fp16").get("enabled") is True and _mapping(file, "bf16").get("enabled") is True:
        message, hint = "fp16 and bf16 are both enabled", "disable one"
        yield file.finding(FindingCode.TWO_PRECISIONS, message, ("bf16", "enabled"), hint)
    for key in ("offload_optimizer", "offload_param"):
        yield from _check_offload(file, key, _mapping(file, _ZERO, key), stage)


def _check_offload(file: ConfigFile, key: str, offload: Mapping[str, Any], stage: int) -> Iterator[Finding]:
    device = offload.get("device", "none")
    path = (_ZERO, key, "device")
    if device in ("none", None):
        return
    if device not in ("cpu", "nvme"):
        message, hint = f"invalid device {device!r}", "use none, cpu or nvme"
        yield file.finding(FindingCode.INVALID_CONFIG_VALUE, message, path, hint)
    elif key == "offload_param" and stage < 3:
        message = f"DeepSpeed silently ignores `offload_param` at stage {stage}"
        yield file.finding(FindingCode.PARAM_OFFLOAD_NEEDS_STAGE_3, message, path, "use stage 3, or remove it")
    elif key == "offload_optimizer" and (stage == 0 or (device == "nvme" and stage < 3)):
        what = "does nothing" if stage == 0 else "uses CPU memory, not NVMe,"
        message = f"`offload_optimizer` {what} at stage {stage}"
        yield file.finding(FindingCode.OPTIMIZER_OFFLOAD_NOT_POSSIBLE, message, path, "use a higher stage")
    if device == "nvme" and not offload.get("nvme_path"):
        message = f"`{key}` has no NVMe path; DeepSpeed would fail at its first write"
        yield file.finding(FindingCode.NVME_PATH_MISMATCH, message, path, "set the NVMe path")


def _auto(file: ConfigFile, hugging_face: bool | None) -> Iterator[Finding]:
    hint = "use it with the Trainer or Accelerate, or write the value"
    severity: Severity = "error" if hugging_face is False else "warning"
    for key, value in file.data.items():
        if value == "auto" and not hugging_face:
            message = f"`{key}`: only Hugging Face fills in `auto`"
            yield file.finding(FindingCode.AUTO_NOT_FILLED_IN, message, (key,), hint, severity)


def _check_batch(file: ConfigFile, replicas: int | None) -> list[Finding]:
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
    return settle(Batch(*values), replicas, [file.place(key) for key in _SIZES])[1]


def _mapping(file: ConfigFile, *path: str) -> Mapping[str, Any]:
    value = file.get(path)
    return value if isinstance(value, Mapping) else {}
