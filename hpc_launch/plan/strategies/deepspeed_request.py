"""What a user asks of a generated DeepSpeed configuration, and whether it is consistent."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place

Device = Literal["none", "cpu", "nvme"]


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


def check_request(asked: DeepSpeed) -> list[Finding]:
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
