"""`node_classes:` of a site profile: the hardware, and how its GPUs are asked for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.sites.fabric import Fabric
from hpc_launch.sites.prelude import PreludeStep, Setting
from hpc_launch.spec.field_types import Mebibytes, Scalar


class NodeClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of node: its hardware, and how its GPUs are asked for."""

    about: Annotated[str, Meta(description="What it is, in words.")] = ""
    cpus: Annotated[int, Meta(description="CPUs that a job can have on one node, as Slurm counts them.", ge=1)]
    cpus_per_gpu: Annotated[
        int | None, Meta(description="CPUs that go with a GPU where a job takes some of a node's.", ge=1)
    ] = None
    threads_per_core: Annotated[
        int, Meta(description="Hardware threads that Slurm counts as CPUs, per core.", ge=1)
    ] = 1
    memory: Annotated[Mebibytes | None, Meta(description="Memory that a job can have on one node.")] = None
    memory_per_gpu: Annotated[
        Mebibytes | None, Meta(description="Memory that goes with a GPU, for the queue's `memory: per-gpu`.")
    ] = None
    arch: Annotated[
        Literal["x86_64", "aarch64"] | None,
        Meta(description="The processor's architecture, which images must have too."),
    ] = None
    gpus: Annotated[int, Meta(description="GPUs in one node, as Slurm counts them.", ge=0)] = 0
    gpus_allowed: Annotated[
        list[int] | None,
        Meta(description="How many of them a job may take on a node, where not any number goes.", examples=[[1, 4]]),
    ] = None
    gpu_type: Annotated[
        str | None,
        Meta(
            description="The type as the request names it: `a100`, `h100-80`, `A100fat`, a memory or an architecture."
        ),
    ] = None
    gpu_memory: Annotated[Mebibytes | None, Meta(description="Memory of one GPU.")] = None
    gpu_vendor: Annotated[Literal["nvidia", "amd", "intel"] | None, Meta(description="Whose GPUs they are.")] = None
    gpu_request: Annotated[
        Literal[
            "gpus-per-node", "gpus-per-node-type", "gres", "gres-type", "gpus", "gpus-type", "gpus-per-task", "none"
        ],
        Meta(
            description="The one dialect in which GPUs are asked for: `--gpus-per-node=N`, the same with TYPE:N, "
            "`--gres=gpu:N`, `--gres=gpu:TYPE:N`, `--gpus=N` for the whole job, the same with TYPE:N, "
            "`--gpus-per-task=N`, or nothing (the partition implies them)."
        ),
    ] = "gpus-per-node"
    constraint: Annotated[
        str | None, Meta(description="For `--constraint`; all constraints of a job must hold.", examples=["gpu&hbm80g"])
    ] = None
    account_suffix: Annotated[
        str | None, Meta(description="What the account has behind it for these nodes.", examples=["@h100"])
    ] = None
    sbatch: Annotated[dict[str, Scalar], Meta(description="More options of sbatch for these nodes, by long name.")] = {}
    srun_options: Annotated[list[str], Meta(description="More options for srun on these nodes.")] = []
    fabric: Annotated[Fabric, Meta(description="What is otherwise here than in the site's `fabric:`.")] = Fabric()
    env: Annotated[
        list[Setting], Meta(description="Variables on these nodes, over those of the site.", extra={"merge": "append"})
    ] = []
    prelude: Annotated[
        list[PreludeStep], Meta(description="Steps on these nodes, after those of the site.", extra={"merge": "append"})
    ] = []
    stack: Annotated[str | None, Meta(description="The entry of `stacks:` for these nodes.")] = None
    versions: Annotated[dict[str, str], Meta(description="Software on these nodes, for conditions.")] = {}
    defaults: Annotated[
        dict[str, Any], Meta(extra={"holds": "job"}), Meta(description="Keys of a job file that hold on these nodes.")
    ] = {}
