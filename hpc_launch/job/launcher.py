"""`launcher:`, `parallel:` and `strategy:` of a job file: what starts the processes, and how they divide the work."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hpc_launch.job.type_hints import LauncherName, short_form


class Launcher(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of the training are started."""

    name: LauncherName
    """`torchrun`, `ft_launcher` and `deepspeed` start once per node and start its processes; `ft_launcher` is the
    torchrun of nvidia-resiliency-ext, with hot restarts. `srun` starts each process itself, with RANK, LOCAL_RANK
    and WORLD_SIZE set. `none` starts the program once, on the first node; it starts its processes itself, with srun
    or over ssh. `${attempt.dir}/hostfile` lists the nodes.
    `ray`, for a role: a Ray cluster on its nodes, and the program on the first of them."""
    options: Annotated[list[str], Meta(examples=[["--log-line-prefix-template=x"]])] = []
    """More options of the launcher, one per list item."""
    rendezvous: Literal["static", "c10d"] | None = None
    """torchrun: rendezvous backend. `static` (the default) keeps the order of the nodes; `c10d` can restart
    processes and continue with fewer nodes, and is the default if the job requests that."""
    max_restarts: Annotated[int | None, Meta(ge=0)] = None
    """torchrun, ft_launcher: how often the processes are restarted inside the job. Default: 0 for torchrun, 3 for
    an elastic run and for ft_launcher. Requires `c10d`."""
    multinode: Literal["no_ssh", "pdsh"] | None = None
    """deepspeed: with `no_ssh`, the site's step starts it on every node; with `pdsh`, it starts once and connects
    to the nodes over ssh, from a host file. Default: the site's choice."""
    numa_binding: Literal["node", "socket", "exclusive", "core-complex", "off"] | None = None
    """torchrun 2.9 and later: its own CPU binding of each process, which requires `numactl` on the nodes. Default:
    the site's `launch.numa_binding`; `off`: none."""

    def optional_keys(self) -> list[str]:
        """The keys that belong to some launchers only and are given."""
        common = ("name", "options")
        return [key for key in self.__struct_fields__ if key not in common and getattr(self, key) is not None]

    __short_forms__ = short_form("`launcher: torchrun`.", {str: "name"})


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model parallelism, in Megatron's terms."""

    tp: Annotated[int, Meta(ge=1)] = 1
    """Tensor parallel size: GPUs that share each layer. Keep it within one node."""
    pp: Annotated[int, Meta(ge=1)] = 1
    """Pipeline parallel size: number of stages that the layers are divided into."""
    cp: Annotated[int, Meta(ge=1)] = 1
    """Context parallel size: GPUs that share each sequence."""
    ep: Annotated[int, Meta(ge=1)] = 1
    """Expert parallel size: GPUs that share the experts of a layer. Requires no additional GPUs."""
    etp: Annotated[int | None, Meta(ge=1)] = None
    """Tensor parallel size within an expert. Default: `tp`."""
    vpp: Annotated[int | None, Meta(ge=2)] = None
    """Virtual stages per pipeline rank: interleaved schedule, for smaller pipeline bubbles."""
    first_stage_layers: Annotated[int | None, Meta(ge=1)] = None
    """Layers of the first pipeline stage, where PP does not divide the layers. The other stages share the rest
    evenly."""
    last_stage_layers: Annotated[int | None, Meta(ge=1)] = None
    """Layers of the last pipeline stage."""
    count_embedding: bool = False
    """Count the embedding as a layer when layers are divided into stages: the first stage has one less. Unlike
    `first_stage_layers`, it suits virtual stages."""
    count_loss: bool = False
    """Count the output layer and the loss as a layer: the last stage has one less."""
    sequence_parallel: bool = False
    """Also split norms and dropouts along the sequence. Requires `tp` above 1."""
    distributed_optimizer: bool = False
    """Shard optimizer states over the data-parallel replicas, like ZeRO 1."""
    overlap: bool = False
    """Overlap communication with computation: gradients, parameters and pipeline stages."""
    micro_batch: Annotated[int, Meta(ge=1)] = 1
    """Samples per replica and micro batch."""
    global_batch: Annotated[int | None, Meta(ge=1)] = None
    """Samples per step over all GPUs. Default: one micro batch per replica."""

    @property
    def model_parallel(self) -> int:
        """Number of processes that share one copy of the model."""
        return self.tp * self.pp * self.cp


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
    global_batch: Annotated[int | None, Meta(ge=1)] = None
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

    __short_forms__ = short_form("`strategy: fsdp`.", {str: "name"})

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
