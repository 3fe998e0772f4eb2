"""Batch sizes among the job's own arguments must be those of `strategy:`, which the configuration files hold."""

from __future__ import annotations

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.layouts.batch import Batch
from hpc_launch.model.megatron_options import arguments
from hpc_launch.plan.fill_values import ValueFiller

_KEYS = {
    "micro_batch_size": "micro_batch",
    "per_device_train_batch_size": "micro_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation",
    "global_batch_size": "global_batch",
}
"""The key of `strategy:` behind an argument, by the names that Transformers, DeepSpeed and Megatron give them."""


def check_batch_arguments(filler: ValueFiller, batch: Batch) -> None:
    """HL610 for a number that contradicts the batch. The Trainer and DeepSpeed would stop; others would not notice."""
    sizes = {"micro_batch": batch.micro, "gradient_accumulation": batch.accumulation, "global_batch": batch.train}
    for name, value, at in arguments(filler.resolved.job.args):
        key = _KEYS.get(name.lstrip("-").replace("-", "_"))
        text, size = str(value), sizes[key] if key is not None else None
        if size is not None and text.isascii() and text.isdigit() and text.lstrip("0") != str(size):
            message = f"`{name}` is {text}, but `strategy:` makes it {size}"
            hint = f"write `${{strategy.{key}}}` here, or remove one of the two"
            filler.fault(FindingCode.INCONSISTENT_BATCH, message, ("args", at), hint)
