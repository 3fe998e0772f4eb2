"""`strategy:` of a job file: how the training is distributed, and the library's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Device = Literal["none", "cpu", "nvme"]
ConfigReader = Literal["deepspeed", "trainer", "accelerate"]


class FullySharded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FSDP configuration."""

    version: Literal[1, 2] = 2
    """FSDP version."""
    sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"] = (
        "FULL_SHARD"
    )
    """What is sharded: FULL_SHARD everything (like ZeRO 3), SHARD_GRAD_OP gradients and optimizer states (like ZeRO
    2), NO_SHARD nothing, HYBRID_SHARD everything within a node. In version 2 this sets reshard_after_forward."""
    wrap_policy: Literal["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"] = "TRANSFORMER_BASED_WRAP"
    """What forms an FSDP unit: a layer class, a number of parameters, or the whole model."""
    wrap_class: list[str] = []
    """Layer classes to wrap, such as LlamaDecoderLayer. Each must exist in the model. Default: the model's
    _no_split_modules."""
    min_params: Annotated[int | None, Meta(ge=1)] = None
    """Minimum number of parameters per unit for SIZE_BASED_WRAP. Default: 1e8."""
    state_dict: Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"] = "SHARDED_STATE_DICT"
    """Checkpoint format: one file, or one file per process."""
    offload: bool = False
    """Keep unused parameters in CPU memory."""
    activation_checkpointing: bool = False
    """Recompute activations to save memory."""


class ZeroOptions(Struct, frozen=True, kw_only=True):
    """The batch, and options of ZeRO."""

    micro_batch: Annotated[int | None, Meta(ge=1)] = None
    """Samples per process and micro batch."""
    global_batch: Annotated[int | None, Meta(ge=1, extra={"names": ["--train-batch"]})] = None
    """Samples per step over all processes."""
    gradient_accumulation: Annotated[int | None, Meta(ge=1)] = None
    """Micro batches per optimizer step."""
    gradient_clipping: Annotated[float | None, Meta(ge=0)] = None
    """ZeRO: maximum gradient norm. 0 disables clipping."""
    offload_optimizer: Annotated[Device, Meta(extra={"bare": "cpu"})] = "none"
    """ZeRO: location of the optimizer states: GPU (`none`), CPU memory, or NVMe (stage 3 only)."""
    offload_param: Annotated[Device, Meta(extra={"bare": "cpu"})] = "none"
    """ZeRO: location of unused parameters. Stage 3 only."""
    nvme_path: str | None = None
    """ZeRO: folder on each node's local NVMe disk, for offloading."""
    buckets: Annotated[int, Meta(ge=1)] = 500_000_000
    """ZeRO: elements per gradient bucket, about 18 bytes of GPU memory each. Use 50000000 to 200000000 on GPUs with
    24 to 40 GB."""
    overlap: bool = True
    """ZeRO: reduce gradients during the backward pass."""


class Strategy(ZeroOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the training is distributed. The job writes the library's configuration file; `${strategy.config}` is its
    path.

    For ZeRO, the file is written if any key besides `name` is set or the job refers to it; for FSDP, only for the
    Trainer.
    """

    name: Literal["ddp", "fsdp", "zero0", "zero1", "zero2", "zero3", "megatron", "none"]
    """The strategy, passed to the training in HPC_LAUNCH_STRATEGY."""
    reader: ConfigReader | None = field(default=None, name="for")
    """Who reads the configuration: `deepspeed` for a training that calls `deepspeed.initialize` itself (the default
    for ZeRO), `trainer` for the Transformers Trainer, `accelerate` for a training with an `Accelerator()`, which is
    configured through environment variables."""
    file: Annotated[str | None, Meta(examples=["ds_config.json"])] = None
    """Your own configuration file, relative to the job file, instead of a generated one. It is checked and passed
    on unchanged."""
    fsdp: FullySharded = FullySharded()
    """FSDP configuration."""

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
