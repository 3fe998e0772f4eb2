"""`queues:`, `account:` and `internet:` of a site profile: where jobs run, their limits, and who is charged.

`node_classes:` and `fabric:` of a site profile: the hardware, how to request its GPUs, and the fast network.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hpc_launch.job.type_hints import Duration, Mebibytes, Scalar, Seconds
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


class Internet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Internet access of the compute nodes. Without access, libraries are switched to offline mode."""

    compute: Annotated[
        Literal["direct", "proxy", "none"] | None,
        Meta(description="How compute nodes access the internet. Unknown if omitted."),
    ] = None
    proxy: Annotated[
        str | None,
        Meta(description="Address of the proxy.", examples=["http://proxy.example.org:3128"], min_length=1),
    ] = None
    no_proxy: Annotated[str, Meta(description="Hosts to access without the proxy, separated by commas.")] = (
        "localhost,127.0.0.1"
    )
    trackers: Annotated[
        Literal["online", "offline"] | None,
        Meta(
            description="Whether trackers send data from compute nodes. Use `offline` if uploads are possible but "
            "unreliable, for example behind a proxy on which they hang."
        ),
    ] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`internet: direct`, or `none`."""
        return {"compute": value} if isinstance(value, str) else None


RANGE_PATTERN = r"^\d+(-\d*)?$"
Range = Annotated[str, Meta(title="a count or range such as 4, 1-91 or 92-", pattern=RANGE_PATTERN)]


class LimitRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a queue's limits: the time limit for a range of counts."""

    nodes: Annotated[
        Range, Meta(description="Node counts that the row applies to: `4`, `1-91`, or `92-` without an upper limit.")
    ]
    time: Annotated[Seconds | None, Meta(description="Maximum time limit for these counts.")] = None
    gpus: Annotated[Range | None, Meta(description="Total GPU counts that the row applies to. Default: any.")] = None


class Preemption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs of the queue are preempted."""

    grace: Annotated[Duration | None, Meta(description="Time between the signal and the end. Default: none.")] = None
    signal: Annotated[str | None, Meta(description="Signal that is sent first.", examples=["SIGTERM"])] = None
    exempt: Annotated[
        Duration | None, Meta(description="Time after the start during which a job is not preempted.")
    ] = None
    requeued: Annotated[bool | None, Meta(description="Whether Slurm requeues the job.")] = None


class Queue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place to run: a partition, QOS, constraint or account, with its limits."""

    about: Annotated[str, Meta(description="Purpose of the queue.")] = ""
    node_class: Annotated[str, Meta(description="Node type, a key of `node_classes`.")]
    partition: Annotated[str | None, Meta(description="Slurm partition.")] = None
    qos: Annotated[str | None, Meta(description="Slurm QOS.")] = None
    constraint: Annotated[
        str | None, Meta(description="Value for `--constraint`. All constraints of a job are combined with AND.")
    ] = None
    account_suffix: Annotated[
        str | None, Meta(description="Suffix of the account in this queue. Overrides that of the node class.")
    ] = None
    default_time: Annotated[Seconds | None, Meta(description="Default time limit.")] = None
    limits: Annotated[list[LimitRow], Meta(description="Limits by node count. Without rows, nothing is checked.")] = []
    node_minutes: Annotated[int | None, Meta(description="Maximum product of nodes and minutes per job.", ge=1)] = None
    gpus: Annotated[Range | None, Meta(description="Total number of GPUs that a job may request.", examples=["4-"])] = (
        None
    )
    gpus_per_user: Annotated[
        int | None, Meta(description="Maximum number of GPUs that the running jobs of a user may use.", ge=1)
    ] = None
    max_jobs: Annotated[int | None, Meta(description="Maximum number of running jobs per user.", ge=1)] = None
    max_submitted: Annotated[
        int | None, Meta(description="Maximum number of queued and running jobs per user.", ge=1)
    ] = None
    internet: Annotated[
        Internet | None, Meta(description="Internet access of its nodes, if it differs from the site's `internet:`.")
    ] = None
    access: Annotated[str, Meta(description="Prerequisite for access, such as a scalability test.")] = ""
    exclusive: Annotated[
        bool | Literal["implied", "forbidden"],
        Meta(
            description="Whether jobs get whole nodes: true adds `--exclusive`, `implied` needs no option, "
            "`forbidden` rejects jobs that request it."
        ),
    ] = False
    memory: Annotated[
        Literal["all", "share", "per-gpu", "omit", "forbidden"],
        Meta(
            description="Default memory request: `all` of the node (`--mem=0`), the `share` that belongs to the "
            "requested CPUs, the node class's `memory_per_gpu` for each GPU (`per-gpu`), or none "
            "(`omit`: implied by the site; `forbidden`: jobs that set memory are rejected)."
        ),
    ] = "share"
    requeue: Annotated[
        Literal["never", "scheduler", "expedite"] | None,
        Meta(description="Overrides `scheduler.requeue` for this queue."),
    ] = None
    preemption: Annotated[Preemption | None, Meta(description="How jobs are preempted. Omit it if they are not.")] = (
        None
    )
    sbatch: Annotated[dict[str, Scalar], Meta(description="Extra sbatch options for this queue, by long name.")] = {}
    srun_options: Annotated[list[str], Meta(description="Extra srun options for this queue.")] = []
    env: Annotated[
        list[Setting],
        Meta(description="Variables for this queue. They override those of the node class.", extra={"merge": "append"}),
    ] = []
    stack: Annotated[str | None, Meta(description="Entry of `stacks:`. Overrides that of the node class.")] = None
    defaults: Annotated[
        dict[str, Any], Meta(extra={"holds": "job"}), Meta(description="Job file keys that apply in this queue.")
    ] = {}

    @property
    def whole_nodes(self) -> bool:
        """Whether a job gets whole nodes."""
        return self.exclusive is True or self.exclusive == "implied"


class Account(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for the account to charge."""

    required: Annotated[bool, Meta(description="Whether a job must specify an account.")] = False
    pattern: Annotated[
        str | None, Meta(description="Regular expression that must match the whole account name, including its suffix.")
    ] = None
    variables: Annotated[
        list[str],
        Meta(
            description="Variables of the submitting shell that contain the default account.",
            examples=[["SBATCH_ACCOUNT"]],
        ),
    ] = []
    find: Annotated[
        str, Meta(description="How users find their accounts: a command of the site, or a page.", examples=["saldo -b"])
    ] = ""
