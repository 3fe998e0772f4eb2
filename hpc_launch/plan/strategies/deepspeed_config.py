"""A DeepSpeed configuration with every key set explicitly, so that it means the same in every release.

Written for DeepSpeed 0.19.8; releases from 0.17 on read the same keys.
"""

from __future__ import annotations

import json
from typing import Any

from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.layouts.batch import Batch, BatchPlaces, settle
from hpc_launch.plan.strategies.config_file import ConfigFile
from hpc_launch.plan.strategies.deepspeed_check import check_values
from hpc_launch.plan.strategies.deepspeed_request import DeepSpeed, Device, check_request

AUTO = "auto"


_BATCH = BatchPlaces(Place("--train-batch"), Place("--micro-batch"), Place("--gradient-accumulation"))


def make(asked: DeepSpeed) -> tuple[str | None, list[Finding]]:
    """The file as JSON; None with findings if the request is inconsistent."""
    findings = check_request(asked)
    batch = _batch(asked, findings)
    if batch is None or errors(findings):
        return None, findings
    data = _configuration(asked, batch)
    # A file that we write must pass the checks for users' files.
    findings += check_values(ConfigFile("the generated file", data, {}))
    return json.dumps(data, indent=2) + "\n", findings


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
