"""`node_classes:` and `fabric:` of a site profile: the hardware, how to request its GPUs, and the fast network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hpc_launch.job.type_hints import Mebibytes, Scalar
from hpc_launch.sites.prelude import PreludeStep, Setting

Kind = Literal["slingshot", "infiniband", "omni-path", "roce", "efa", "gcp", "ethernet"]


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fast network. A node class may override parts of it. Omitted settings are left to the libraries."""

    kind: Annotated[Kind | None, Meta(description="Network family. Add its base profile to `extends`.")] = None
    nccl_interfaces: Annotated[
        list[str] | None,
        Meta(
            description="NCCL_SOCKET_IFNAME: interfaces for NCCL's bootstrap, if `network.interface` is not "
            "specific enough. Name prefixes, or with `^` before the first one prefixes to exclude.",
            examples=[["hsn0", "hsn1"]],
        ),
    ] = None
    gloo_interfaces: Annotated[
        list[str] | None, Meta(description="GLOO_SOCKET_IFNAME: interfaces for Gloo, by full name.")
    ] = None
    family: Annotated[Literal["AF_INET", "AF_INET6"] | None, Meta(description="NCCL_SOCKET_FAMILY: IPv4 or IPv6.")] = (
        None
    )
    hca: Annotated[
        list[str] | None,
        Meta(
            description="NCCL_IB_HCA: InfiniBand adapters. `=` before the first one requires exact names.",
            examples=[["mlx5_0", "mlx5_1"]],
        ),
    ] = None
    net: Annotated[
        str | None,
        Meta(
            description="NCCL_NET: network that NCCL must use. A missing plugin is then an error instead of a "
            "fallback to TCP.",
            examples=["AWS Libfabric"],
        ),
    ] = None
    plugin: Annotated[str | None, Meta(description="NCCL_NET_PLUGIN: network plugin, or `none`.")] = None
    topology: Annotated[str | None, Meta(description="NCCL_TOPO_FILE: topology file on the nodes.")] = None
    topology_inside: Annotated[str | None, Meta(description="Path of the topology file inside an image.")] = None


def overlay_fabric(site: Fabric, node: Fabric) -> tuple[Fabric, frozenset[str]]:
    """The fabric of a node class: the site's settings with its own, and which keys are its own."""
    own = {key: value for key, value in asdict(node).items() if value is not None}
    return Fabric(**{**asdict(site), **own}), frozenset(own)


class NodeClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of node: its hardware, and how to request its GPUs."""

    about: Annotated[str, Meta(description="Short description.")] = ""
    cpus: Annotated[int, Meta(description="CPUs per node that a job can use, as Slurm counts them.", ge=1)]
    cpus_per_gpu: Annotated[int | None, Meta(description="CPUs per GPU, for jobs that use part of a node.", ge=1)] = (
        None
    )
    threads_per_core: Annotated[int, Meta(description="Hardware threads per core that Slurm counts as CPUs.", ge=1)] = 1
    memory: Annotated[Mebibytes | None, Meta(description="Memory per node that a job can use.")] = None
    memory_per_gpu: Annotated[
        Mebibytes | None, Meta(description="Memory per GPU, for the queue's `memory: per-gpu`.")
    ] = None
    arch: Annotated[
        Literal["x86_64", "aarch64"] | None,
        Meta(description="CPU architecture, which images must match."),
    ] = None
    gpus: Annotated[int, Meta(description="GPUs per node, as Slurm counts them.", ge=0)] = 0
    gpus_allowed: Annotated[
        list[int] | None,
        Meta(description="Allowed numbers of GPUs per node, if restricted.", examples=[[1, 4]]),
    ] = None
    gpu_type: Annotated[
        str | None,
        Meta(
            description="GPU type in Slurm's request: `a100`, `h100-80`, `A100fat`, a memory size or an architecture."
        ),
    ] = None
    gpu_memory: Annotated[Mebibytes | None, Meta(description="Memory per GPU.")] = None
    gpu_vendor: Annotated[Literal["nvidia", "amd", "intel"] | None, Meta(description="GPU vendor.")] = None
    gpu_request: Annotated[
        Literal[
            "gpus-per-node", "gpus-per-node-type", "gres", "gres-type", "gpus", "gpus-type", "gpus-per-task", "none"
        ],
        Meta(
            description="How to request GPUs: `--gpus-per-node=N` or with TYPE:N, `--gres=gpu:N`, "
            "`--gres=gpu:TYPE:N`, `--gpus=N` for the whole job or with TYPE:N, `--gpus-per-task=N`, or "
            "nothing if the partition implies them."
        ),
    ] = "gpus-per-node"
    constraint: Annotated[
        str | None,
        Meta(
            description="Value for `--constraint`. All constraints of a job are combined with AND.",
            examples=["gpu&hbm80g"],
        ),
    ] = None
    account_suffix: Annotated[
        str | None, Meta(description="Suffix of the account for these nodes.", examples=["@h100"])
    ] = None
    sbatch: Annotated[dict[str, Scalar], Meta(description="Extra sbatch options for these nodes, by long name.")] = {}
    srun_options: Annotated[list[str], Meta(description="Extra srun options for these nodes.")] = []
    fabric: Annotated[Fabric, Meta(description="Overrides of the site's `fabric:`.")] = Fabric()
    env: Annotated[
        list[Setting],
        Meta(description="Variables for these nodes. They override those of the site.", extra={"merge": "append"}),
    ] = []
    prelude: Annotated[
        list[PreludeStep],
        Meta(description="Steps for these nodes, after those of the site.", extra={"merge": "append"}),
    ] = []
    stack: Annotated[str | None, Meta(description="Entry of `stacks:` for these nodes.")] = None
    versions: Annotated[dict[str, str], Meta(description="Software on these nodes, for conditions.")] = {}
    defaults: Annotated[
        dict[str, Any], Meta(extra={"holds": "job"}), Meta(description="Job file keys that apply to these nodes.")
    ] = {}
