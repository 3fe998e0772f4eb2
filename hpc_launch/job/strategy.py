"""`strategy:` of a job file: how the training is distributed, and the library's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Device = Literal["none", "cpu", "nvme"]
ConfigReader = Literal["deepspeed", "trainer", "accelerate"]


class FullySharded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FSDP configuration."""

    version: Annotated[Literal[1, 2], Meta(description="FSDP version.")] = 2
    sharding_strategy: Annotated[
        Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"],
        Meta(
            description="What is sharded: FULL_SHARD everything (like ZeRO 3), SHARD_GRAD_OP gradients and "
            "optimizer states (like ZeRO 2), NO_SHARD nothing, HYBRID_SHARD everything within a node. "
            "In version 2 this sets reshard_after_forward."
        ),
    ] = "FULL_SHARD"
    wrap_policy: Annotated[
        Literal["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"],
        Meta(description="What forms an FSDP unit: a layer class, a number of parameters, or the whole model."),
    ] = "TRANSFORMER_BASED_WRAP"
    wrap_class: Annotated[
        list[str],
        Meta(
            description="Layer classes to wrap, such as LlamaDecoderLayer. Each must exist in the model. Default: "
            "the model's _no_split_modules."
        ),
    ] = []
    min_params: Annotated[
        int | None, Meta(description="Minimum number of parameters per unit for SIZE_BASED_WRAP. Default: 1e8.", ge=1)
    ] = None
    state_dict: Annotated[
        Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"],
        Meta(description="Checkpoint format: one file, or one file per process."),
    ] = "SHARDED_STATE_DICT"
    offload: Annotated[bool, Meta(description="Keep unused parameters in CPU memory.")] = False
    activation_checkpointing: Annotated[bool, Meta(description="Recompute activations to save memory.")] = False


class ZeroOptions(Struct, frozen=True, kw_only=True):
    """The batch, and options of ZeRO."""

    micro_batch: Annotated[int | None, Meta(description="Samples per process and micro batch.", ge=1)] = None
    global_batch: Annotated[
        int | None, Meta(description="Samples per step over all processes.", ge=1, extra={"names": ["--train-batch"]})
    ] = None
    gradient_accumulation: Annotated[int | None, Meta(description="Micro batches per optimizer step.", ge=1)] = None
    gradient_clipping: Annotated[
        float | None, Meta(description="ZeRO: maximum gradient norm. 0 disables clipping.", ge=0)
    ] = None
    offload_optimizer: Annotated[
        Device,
        Meta(
            description="ZeRO: location of the optimizer states: GPU (`none`), CPU memory, or NVMe (stage 3 only).",
            extra={"bare": "cpu"},
        ),
    ] = "none"
    offload_param: Annotated[
        Device, Meta(description="ZeRO: location of unused parameters. Stage 3 only.", extra={"bare": "cpu"})
    ] = "none"
    nvme_path: Annotated[
        str | None, Meta(description="ZeRO: folder on each node's local NVMe disk, for offloading.")
    ] = None
    buckets: Annotated[
        int,
        Meta(
            description="ZeRO: elements per gradient bucket, about 18 bytes of GPU memory each. Use 50000000 to "
            "200000000 on GPUs with 24 to 40 GB.",
            ge=1,
        ),
    ] = 500_000_000
    overlap: Annotated[bool, Meta(description="ZeRO: reduce gradients during the backward pass.")] = True


class Strategy(ZeroOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the training is distributed. The job writes the library's configuration file; `${strategy.config}` is its
    path.

    For ZeRO, the file is written if any key besides `name` is set or the job refers to it; for FSDP, only for the
    Trainer.
    """

    name: Annotated[
        Literal["ddp", "fsdp", "zero0", "zero1", "zero2", "zero3", "megatron", "none"],
        Meta(description="The strategy, passed to the training in HPC_LAUNCH_STRATEGY."),
    ]
    reader: Annotated[
        ConfigReader | None,
        Meta(
            description="Who reads the configuration: `deepspeed` for a training that calls `deepspeed.initialize` "
            "itself (the default for ZeRO), `trainer` for the Transformers Trainer, `accelerate` for a "
            "training with an `Accelerator()`, which is configured through environment variables."
        ),
    ] = field(default=None, name="for")
    file: Annotated[
        str | None,
        Meta(
            description="Your own configuration file, relative to the job file, instead of a generated one. It is "
            "checked and passed on unchanged.",
            examples=["ds_config.json"],
        ),
    ] = None
    fsdp: Annotated[FullySharded, Meta(description="FSDP configuration.")] = FullySharded()

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`strategy: fsdp`."""
        return {"name": value} if isinstance(value, str) else None

    @property
    def zero_stage(self) -> int | None:
        """The ZeRO stage, or None for other strategies."""
        return int(self.name[4:]) if self.name.startswith("zero") else None

    @property
    def config(self) -> str | None:
        """Name of the configuration file in the attempt's folder, or None if there is none."""
        if self.zero_stage is not None:
            return "deepspeed.json"
        return "fsdp.json" if self.name == "fsdp" and self.reader == "trainer" else None
