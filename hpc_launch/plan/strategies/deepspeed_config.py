"""A DeepSpeed configuration with every key set explicitly, so that it means the same in every release.

Written for DeepSpeed 0.19.8; releases from 0.17 on read the same keys.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.strategy import Device
from hpc_launch.layouts.parallel_layout import Batch, BatchPlaces, settle

AUTO = "auto"


class DeepSpeed(Struct, frozen=True, kw_only=True):
    """A request for a DeepSpeed configuration. Bucket sizes are in elements, not bytes."""

    zero_stage: Annotated[
        Literal[0, 1, 2, 3],
        Meta(description="What ZeRO shards: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters."),
    ] = 2
    offload_optimizer: Annotated[
        Device,
        Meta(
            description="Where to keep optimizer states: in CPU memory or, at stage 3, on NVMe. Without a value: cpu.",
            extra={"bare": "cpu"},
        ),
    ] = "none"
    offload_param: Annotated[
        Device,
        Meta(description="Where to keep unused parameters; stage 3 only. Without a value: cpu.", extra={"bare": "cpu"}),
    ] = "none"
    nvme_path: Annotated[str | None, Meta(description="A folder on each node's local NVMe disk, for offloading.")] = (
        None
    )
    bf16: Annotated[bool, Meta(description="Train in bfloat16.")] = False
    fp16: Annotated[bool, Meta(description="Train in float16 with dynamic loss scaling.")] = False
    gradient_clipping: Annotated[
        float | None, Meta(description="Maximum gradient norm; 0 disables clipping. Default: 1.0.", ge=0)
    ] = None
    micro_batch: Annotated[int | None, Meta(description="Samples per GPU and micro step.", ge=1)] = None
    gradient_accumulation: Annotated[int | None, Meta(description="Micro steps per optimizer step.", ge=1)] = None
    train_batch: Annotated[int | None, Meta(description="Samples per optimizer step over all GPUs.", ge=1)] = None
    world_size: Annotated[
        int | None, Meta(description="Total number of processes; needed to check the batch sizes.", ge=1)
    ] = None
    model_parallel: Annotated[
        int, Meta(description="Processes that share one replica of the model (tensor × pipeline × sequence).", ge=1)
    ] = 1
    buckets: Annotated[
        int,
        Meta(
            description="Elements per communication bucket. Overlapping takes about 18 bytes of GPU memory each: "
            "9 GB at 5e8; use 5e7 to 2e8 on GPUs with 24 to 40 GB.",
            ge=1,
        ),
    ] = 500_000_000
    overlap: Annotated[bool, Meta(description="Reduce gradients during the backward pass.")] = True
    optimizer: Annotated[
        Literal["none", "AdamW", "Adam", "Lion", "Adagrad", "Lamb"],
        Meta(description="Let DeepSpeed create the optimizer; none: the training creates it."),
    ] = "none"
    learning_rate: Annotated[float, Meta(description="The learning rate, with --optimizer or --scheduler.", gt=0)] = (
        1e-4
    )
    scheduler: Annotated[
        Literal["none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"],
        Meta(description="Let DeepSpeed create the learning rate schedule."),
    ] = "none"
    warmup_steps: Annotated[int, Meta(description="Warmup steps; at least 1 since DeepSpeed 0.19.6.", ge=1)] = 100
    total_steps: Annotated[int | None, Meta(description="Total number of steps, for a schedule that decays.", ge=1)] = (
        None
    )
    auto: Annotated[
        bool,
        Meta(
            description="Write `auto` where the Transformers Trainer fills in its own arguments. Only Hugging Face "
            "supports `auto`."
        ),
    ] = False


_BATCH = BatchPlaces(Place("--train-batch"), Place("--micro-batch"), Place("--gradient-accumulation"))


def make(asked: DeepSpeed) -> tuple[str | None, list[Finding]]:
    """The file as JSON; None with findings if the request is inconsistent."""
    findings = _check(asked)
    batch = _batch(asked, findings)
    if batch is None or errors(findings):
        return None, findings
    return json.dumps(_configuration(asked, batch), indent=2) + "\n", findings


def example() -> dict[str, Any]:
    """A configuration with every key that `make` ever writes."""
    asked = DeepSpeed(
        zero_stage=3,
        offload_optimizer="nvme",
        offload_param="nvme",
        nvme_path="/nvme",
        optimizer="AdamW",
        scheduler="WarmupLR",
    )
    return _configuration(asked, Batch(1, 1, 1))


def _check(asked: DeepSpeed) -> list[Finding]:
    """Find options that contradict each other."""
    findings: list[Finding] = []

    def fault(code: FindingCode, message: str, option: str, hint: str) -> None:
        findings.append(Finding(code, message, Place(option), hint))

    if asked.world_size is not None and asked.world_size % asked.model_parallel:
        message = f"{asked.world_size} processes are not divisible by --model-parallel {asked.model_parallel}"
        fault(FindingCode.INCONSISTENT_BATCH, message, "--world-size", "change one of the two")
    if asked.bf16 and asked.fp16:
        fault(FindingCode.TWO_PRECISIONS, "bf16 and fp16 are mutually exclusive", "--fp16", "keep one of them")
    if asked.offload_param != "none" and asked.zero_stage < 3:
        message = f"stage {asked.zero_stage} does not shard parameters, so they cannot be offloaded"
        fault(FindingCode.PARAM_OFFLOAD_NEEDS_STAGE_3, message, "--offload-param", "use --zero-stage 3")
    for name, device in (("optimizer", asked.offload_optimizer), ("param", asked.offload_param)):
        if device == "nvme" and asked.nvme_path is None:
            hint = "add --nvme-path FOLDER"
            fault(FindingCode.NVME_PATH_MISMATCH, "no NVMe path given", f"--offload-{name}", hint)
    if asked.nvme_path is not None and "nvme" not in {asked.offload_optimizer, asked.offload_param}:
        hint = "add --offload-optimizer nvme or --offload-param nvme"
        fault(FindingCode.NVME_PATH_MISMATCH, "nothing is offloaded to NVMe", "--nvme-path", hint)
    if asked.offload_optimizer != "none" and asked.zero_stage == 0:
        message = "stage 0 does not shard optimizer states, so they cannot be offloaded"
        hint = "use --zero-stage 1, 2 or 3"
        fault(FindingCode.OPTIMIZER_OFFLOAD_NOT_POSSIBLE, message, "--offload-optimizer", hint)
    elif asked.offload_optimizer == "nvme" and asked.zero_stage < 3:
        message = f"stage {asked.zero_stage} offloads optimizer states to CPU memory only"
        hint = "use --zero-stage 3, or offload to cpu"
        fault(FindingCode.OPTIMIZER_OFFLOAD_NOT_POSSIBLE, message, "--offload-optimizer", hint)
    if asked.scheduler in {"WarmupDecayLR", "WarmupCosineLR"} and asked.total_steps is None and not asked.auto:
        message = f"{asked.scheduler} needs the total number of steps"
        fault(FindingCode.INVALID_SCHEDULE, message, "--scheduler", "add --total-steps N")
    return findings


def _batch(asked: DeepSpeed, findings: list[Finding]) -> Batch | None:
    given = Batch(asked.train_batch, asked.micro_batch, asked.gradient_accumulation)
    if asked.auto and given == Batch(None, None, None):
        return given
    replicas = None if asked.world_size is None else asked.world_size // asked.model_parallel
    if asked.auto and asked.train_batch is None and asked.micro_batch is None:
        return given  # the Trainer fills in the rest
    batch, faults = settle(given, replicas, _BATCH)
    findings += faults
    return batch


def _configuration(asked: DeepSpeed, batch: Batch) -> dict[str, Any]:
    unknown = AUTO if asked.auto else None
    sizes = {
        "train_batch_size": batch.train or unknown,
        "train_micro_batch_size_per_gpu": batch.micro or unknown,
        "gradient_accumulation_steps": batch.accumulation or unknown,
    }
    clipping = asked.gradient_clipping
    data: dict[str, Any] = {key: value for key, value in sizes.items() if value is not None}
    data["gradient_clipping"] = clipping if clipping is not None else (unknown or 1.0)
    data["steps_per_print"] = 10
    data["wall_clock_breakdown"] = False
    offloaded = asked.offload_optimizer != "none"
    if asked.zero_stage:
        # Without this, DeepSpeed refuses an optimizer that the training creates.
        data["zero_allow_untested_optimizer"] = True
    if offloaded:
        # True refuses all optimizers but DeepSpeed's CPU optimizer; the training's own is slow, but correct.
        data["zero_force_ds_cpu_optimizer"] = asked.optimizer != "none"
    data["bf16"] = _bf16(asked)
    data["fp16"] = _fp16(asked)
    data["zero_optimization"] = _zero(asked)
    data |= _optimizer(asked)
    return data


def _switch(asked: DeepSpeed, name: str) -> bool | str:
    """Whether a precision is enabled, or `auto` to take it from the Trainer's arguments."""
    if asked.auto and not asked.bf16 and not asked.fp16:
        return AUTO
    return bool(getattr(asked, name))


def _bf16(asked: DeepSpeed) -> dict[str, Any]:
    return {"enabled": _switch(asked, "bf16"), "immediate_grad_update": False, "check_grad_overflow": True}


def _fp16(asked: DeepSpeed) -> dict[str, Any]:
    return {
        "enabled": _switch(asked, "fp16"),
        "auto_cast": False,
        "loss_scale": 0,  # 0: dynamic
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    }


def _zero(asked: DeepSpeed) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": asked.zero_stage}
    if asked.zero_stage == 0:
        return zero
    zero |= {
        "overlap_comm": asked.overlap,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": AUTO if asked.auto and asked.zero_stage == 3 else asked.buckets,
        "allgather_partitions": True,
        "allgather_bucket_size": asked.buckets,
        "round_robin_gradients": False,
    }
    if asked.zero_stage == 3:
        zero |= {
            "sub_group_size": 1_000_000_000,
            "stage3_prefetch_bucket_size": AUTO if asked.auto else 50_000_000,
            "stage3_param_persistence_threshold": AUTO if asked.auto else 100_000,
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
    path = {"nvme_path": nvme_path} if device == "nvme" else {}
    return {"device": device, **path, "pin_memory": True, "buffer_count": buffer_count}


def _optimizer(asked: DeepSpeed) -> dict[str, Any]:
    data: dict[str, Any] = {}
    rate = AUTO if asked.auto else asked.learning_rate
    if asked.optimizer != "none":
        more = {"betas": AUTO, "eps": AUTO, "weight_decay": AUTO} if asked.auto else {}
        data["optimizer"] = {"type": asked.optimizer, "params": {"lr": rate, **more}}
    if asked.scheduler == "none":
        return data
    auto = asked.auto
    params: dict[str, Any] = {"warmup_num_steps": AUTO if auto else asked.warmup_steps}
    if asked.scheduler == "WarmupCosineLR":
        params |= {"warmup_min_ratio": 0.0, "cos_min_ratio": 0.0001}
    else:
        params |= {"warmup_min_lr": AUTO if auto else 0, "warmup_max_lr": rate}
    if asked.scheduler != "WarmupLR":
        params["total_num_steps"] = AUTO if auto else asked.total_steps
    data["scheduler"] = {"type": asked.scheduler, "params": params}
    return data
