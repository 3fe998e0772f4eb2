"""`launcher:` and `parallel:` of a job file: what starts the processes, and how they divide the model."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

LauncherName = Literal["torchrun", "deepspeed", "srun", "none", "ft_launcher"]
"""Each has a module in `plan/launchers/` and a template in `slurm_templates/launcher/`."""


class Launcher(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of the training are started."""

    name: LauncherName
    """`torchrun`, `ft_launcher` and `deepspeed` start once per node and start its processes; `ft_launcher` is the
    torchrun of nvidia-resiliency-ext, with hot restarts. `srun` starts each process itself, with RANK, LOCAL_RANK
    and WORLD_SIZE set. `none` starts the program once, on the first node; it starts its processes itself, with srun
    or over ssh. `${attempt.dir}/hostfile` lists the nodes."""
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
    numa_binding: Literal["node", "socket", "exclusive", "core-complex"] | None = None
    """torchrun 2.9 and later: CPU binding of each process. Requires `numactl` on the nodes."""

    def optional_keys(self) -> list[str]:
        """The keys that belong to some launchers only and are given."""
        common = ("name", "options")
        return [key for key in self.__struct_fields__ if key not in common and getattr(self, key) is not None]

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`launcher: torchrun`."""
        return {"name": value} if isinstance(value, str) else None


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
