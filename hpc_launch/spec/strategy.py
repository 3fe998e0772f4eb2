"""`strategy:` of a job file: how the training is spread, and what its configuration shall say."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Device = Literal["none", "cpu", "nvme"]
Reader = Literal["deepspeed", "trainer", "accelerate"]


class FullySharded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an FSDP configuration says of the model."""

    version: Annotated[Literal[1, 2], Meta(description="FSDP 1 or 2.")] = 2
    sharding_strategy: Annotated[
        Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"],
        Meta(
            description="What is sharded: FULL_SHARD everything (as ZeRO 3), SHARD_GRAD_OP gradients and optimizer "
            "states (as ZeRO 2), NO_SHARD nothing; HYBRID_SHARD everything within a node. With version 2 it becomes "
            "reshard_after_forward."
        ),
    ] = "FULL_SHARD"
    wrap_policy: Annotated[
        Literal["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"],
        Meta(description="What makes a unit: a layer class, a number of parameters, or only the whole model."),
    ] = "TRANSFORMER_BASED_WRAP"
    wrap_class: Annotated[
        list[str],
        Meta(
            description="Layer classes such as LlamaDecoderLayer; each has to be in the model. Without one the "
            "model's own _no_split_modules count."
        ),
    ] = []
    min_params: Annotated[
        int | None, Meta(description="Parameters that make a unit, with SIZE_BASED_WRAP. Default 1e8.", ge=1)
    ] = None
    state_dict: Annotated[
        Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"],
        Meta(description="The form of checkpoints: one file, or one a process."),
    ] = "SHARDED_STATE_DICT"
    offload: Annotated[bool, Meta(description="Keep parameters in CPU memory when they are not in use.")] = False
    activation_checkpointing: Annotated[bool, Meta(description="Compute activations again to save memory.")] = False


class Strategy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the training is spread. The library's file is written by the job, and `${strategy.config}` is its name.

    With ZeRO it is written where anything beyond the name is said here, or where the job names it; with FSDP for the
    Trainer alone.
    """

    name: Annotated[
        Literal["ddp", "fsdp", "zero0", "zero1", "zero2", "zero3", "megatron", "none"],
        Meta(description="The strategy; the training finds it in HPC_LAUNCH_STRATEGY."),
    ]
    reader: Annotated[
        Reader | None,
        Meta(
            description="Who reads the configuration: `deepspeed` a training that calls `deepspeed.initialize` itself "
            "(the default with ZeRO), `trainer` the Transformers Trainer, `accelerate` a training with an "
            "`Accelerator()`, which gets it by its environment."
        ),
    ] = field(default=None, name="for")
    file: Annotated[
        str | None,
        Meta(
            description="A configuration of your own in place of a made one, relative to the job file: it is checked, "
            "and handed on as it is.",
            examples=["ds_config.json"],
        ),
    ] = None
    micro_batch: Annotated[int | None, Meta(description="Samples that a process takes at once.", ge=1)] = None
    global_batch: Annotated[int | None, Meta(description="Samples a step over all processes.", ge=1)] = None
    gradient_accumulation: Annotated[
        int | None, Meta(description="Micro batches that are added up before a step.", ge=1)
    ] = None
    gradient_clipping: Annotated[
        float | None, Meta(description="ZeRO: the largest norm of the gradients; 0 turns clipping off.", ge=0)
    ] = None
    offload_optimizer: Annotated[
        Device, Meta(description="ZeRO: where optimizer states live: on the GPU, in CPU memory, at stage 3 on NVMe.")
    ] = "none"
    offload_param: Annotated[Device, Meta(description="ZeRO: where parameters live when not in use; stage 3 only.")] = (
        "none"
    )
    nvme_path: Annotated[
        str | None, Meta(description="ZeRO: a folder on each node's own NVMe disk, for offloading.")
    ] = None
    buckets: Annotated[
        int,
        Meta(
            description="ZeRO: elements in a bucket of gradients. About 18 bytes of GPU memory each: take 50000000 to "
            "200000000 on GPUs of 24 to 40 GB.",
            ge=1,
        ),
    ] = 500_000_000
    overlap: Annotated[bool, Meta(description="ZeRO: reduce gradients while the backward pass still runs.")] = True
    fsdp: Annotated[FullySharded, Meta(description="FSDP: what is sharded, wrapped and kept.")] = FullySharded()

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`strategy: fsdp`."""
        return {"name": value} if isinstance(value, str) else None

    @property
    def zero_stage(self) -> int | None:
        """The stage of ZeRO; None for what is not DeepSpeed's."""
        return int(self.name[4:]) if self.name.startswith("zero") else None

    @property
    def config(self) -> str | None:
        """The file that the job writes for the library, by its name in the attempt's folder; None for none."""
        if self.zero_stage is not None:
            return "deepspeed.json"
        return "fsdp.json" if self.name == "fsdp" and self.reader == "trainer" else None
