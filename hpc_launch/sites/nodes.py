"""`node_classes:` of a site profile: the hardware, and how its GPUs are asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.values import Mebibytes


class NodeClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of node: its hardware, and how its GPUs are asked for."""

    cpus: Annotated[int, Meta(description="CPUs that a job can have on one node, as Slurm counts them.", ge=1)]
    threads_per_core: Annotated[
        int, Meta(description="Hardware threads that Slurm counts as CPUs, per core.", ge=1)
    ] = 1
    memory: Annotated[Mebibytes | None, Meta(description="Memory that a job can have on one node.")] = None
    gpus: Annotated[int, Meta(description="GPUs in one node.", ge=0)] = 0
    gpu_type: Annotated[str | None, Meta(description="The type in Slurm's GRES, such as `a100`.")] = None
    gpu_vendor: Annotated[Literal["nvidia", "amd", "intel"] | None, Meta(description="Whose GPUs they are.")] = None
    gpu_request: Annotated[
        Literal["gpus-per-node", "gres", "gres-type", "none"],
        Meta(
            description="The one dialect in which GPUs are asked for, for sbatch and srun alike: "
            "`--gpus-per-node=N`, `--gres=gpu:N`, `--gres=gpu:TYPE:N`, or nothing (the partition implies them)."
        ),
    ] = "gpus-per-node"
