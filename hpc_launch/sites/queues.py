"""`queues:`, `account:` and `internet:` of a site profile: where jobs run, their limits, and who is charged.

`node_classes:` and `fabric:` of a site profile: the hardware, how to request its GPUs, and the fast network.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hpc_launch.job.type_hints import Duration, Mebibytes, Scalar, Seconds, short_form
from hpc_launch.sites.job_settings import PreludeStep, Setting

Kind = Literal["slingshot", "infiniband", "omni-path", "roce", "efa", "gcp", "ethernet"]


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fast network. A node class may override parts of it. Omitted settings are left to the libraries."""

    kind: Kind | None = None
    """Network family. Add its base profile to `extends`."""
    nccl_interfaces: Annotated[list[str] | None, Meta(examples=[["hsn0", "hsn1"]])] = None
    """NCCL_SOCKET_IFNAME: interfaces for NCCL's bootstrap, if `network.interface` is not specific enough. Name
    prefixes, or with `^` before the first one prefixes to exclude."""
    gloo_interfaces: list[str] | None = None
    """GLOO_SOCKET_IFNAME: interfaces for Gloo, by full name."""
    family: Literal["AF_INET", "AF_INET6"] | None = None
    """NCCL_SOCKET_FAMILY: IPv4 or IPv6."""
    hca: Annotated[list[str] | None, Meta(examples=[["mlx5_0", "mlx5_1"]])] = None
    """NCCL_IB_HCA: InfiniBand adapters. `=` before the first one requires exact names."""
    net: Annotated[str | None, Meta(examples=["AWS Libfabric"])] = None
    """NCCL_NET: network that NCCL must use. A missing plugin is then an error instead of a fallback to TCP."""
    plugin: str | None = None
    """NCCL_NET_PLUGIN: network plugin, or `none`."""
    fallback: Literal["named", "fatal"] | None = None
    """The node check proves that NCCL uses this network. A fallback to TCP is named, or ends the job (`fatal`)."""
    topology: str | None = None
    """NCCL_TOPO_FILE: topology file on the nodes."""
    topology_inside: str | None = None
    """Path of the topology file inside an image."""


def overlay_fabric(site: Fabric, node: Fabric) -> tuple[Fabric, frozenset[str]]:
    """The fabric of a node class: the site's settings with its own, and which keys are its own."""
    own = {key: value for key, value in asdict(node).items() if value is not None}
    return Fabric(**{**asdict(site), **own}), frozenset(own)


class NodeClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of node: its hardware, and how to request its GPUs."""

    about: str = ""
    """Short description."""
    cpus: Annotated[int, Meta(ge=1)]
    """CPUs per node that a job can use, as Slurm counts them."""
    cpus_per_gpu: Annotated[int | None, Meta(ge=1)] = None
    """CPUs per GPU, for jobs that use part of a node."""
    threads_per_core: Annotated[int, Meta(ge=1)] = 1
    """Hardware threads per core that Slurm counts as CPUs."""
    memory: Mebibytes | None = None
    """Memory per node that a job can use."""
    memory_per_gpu: Mebibytes | None = None
    """Memory per GPU, for the queue's `memory: per-gpu`."""
    arch: Literal["x86_64", "aarch64"] | None = None
    """CPU architecture, which images must match."""
    gpus: Annotated[int, Meta(ge=0)] = 0
    """GPUs per node, as Slurm counts them."""
    gpus_allowed: Annotated[list[int] | None, Meta(examples=[[1, 4]])] = None
    """Allowed numbers of GPUs per node, if restricted."""
    gpu_type: str | None = None
    """GPU type in Slurm's request: `a100`, `h100-80`, `A100fat`, a memory size or an architecture."""
    gpu_memory: Mebibytes | None = None
    """Memory per GPU."""
    gpu_vendor: Literal["nvidia", "amd", "intel"] | None = None
    """GPU vendor."""
    gpu_request: Literal[
        "gpus-per-node", "gpus-per-node-type", "gres", "gres-type", "gpus", "gpus-type", "gpus-per-task", "none"
    ] = "gpus-per-node"
    """How to request GPUs: `--gpus-per-node=N` or with TYPE:N, `--gres=gpu:N`, `--gres=gpu:TYPE:N`, `--gpus=N` for
    the whole job or with TYPE:N, `--gpus-per-task=N`, or nothing if the partition implies them."""
    nvlink_nodes: Annotated[int, Meta(ge=1, examples=[18])] = 1
    """Nodes whose GPUs NVLink connects: 18 in a GB200 NVL72. With `sbatch: {segment: N}`, N nodes of a job are in
    one such block, and tensor parallelism may span them."""
    constraint: Annotated[str | None, Meta(examples=["gpu&hbm80g"])] = None
    """Value for `--constraint`. All constraints of a job are combined with AND."""
    account_suffix: Annotated[str | None, Meta(examples=["@h100"])] = None
    """Suffix of the account for these nodes."""
    sbatch: dict[str, Scalar] = {}
    """Extra sbatch options for these nodes, by long name."""
    srun_options: list[str] = []
    """Extra srun options for these nodes."""
    fabric: Fabric = Fabric()
    """Overrides of the site's `fabric:`."""
    env: Annotated[list[Setting], Meta(extra={"merge": "append"})] = []
    """Variables for these nodes. They override those of the site."""
    prelude: Annotated[list[PreludeStep], Meta(extra={"merge": "append"})] = []
    """Steps for these nodes, after those of the site."""
    stack: str | None = None
    """Entry of `stacks:` for these nodes."""
    versions: dict[str, str] = {}
    """Software on these nodes, for conditions."""
    defaults: Annotated[dict[str, Any], Meta(extra={"holds": "job"})] = {}
    """Job file keys that apply to these nodes."""


class Internet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Internet access of the compute nodes. Without access, libraries are switched to offline mode."""

    compute: Literal["direct", "proxy", "none"] | None = None
    """How compute nodes access the internet. Unknown if omitted."""
    proxy: Annotated[str | None, Meta(examples=["http://proxy.example.org:3128"], min_length=1)] = None
    """Address of the proxy."""
    no_proxy: str = "localhost,127.0.0.1"
    """Hosts to access without the proxy, separated by commas."""
    trackers: Literal["online", "offline"] | None = None
    """Whether trackers send data from compute nodes. Use `offline` if uploads are possible but unreliable, for
    example behind a proxy on which they hang."""

    __short_forms__ = short_form("`internet: direct`, or `none`.", {str: "compute"})


RANGE_PATTERN = r"^\d+(-\d*)?$"
Range = Annotated[str, Meta(title="a count or range such as 4, 1-91 or 92-", pattern=RANGE_PATTERN)]


class LimitRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a queue's limits: the time limit for a range of counts."""

    nodes: Range
    """Node counts that the row applies to: `4`, `1-91`, or `92-` without an upper limit."""
    time: Seconds | None = None
    """Maximum time limit for these counts."""
    gpus: Range | None = None
    """Total GPU counts that the row applies to. Default: any."""


class Preemption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs of the queue are preempted."""

    grace: Duration | None = None
    """Time between the signal and the end. Default: none."""
    signal: Annotated[str | None, Meta(examples=["SIGTERM"])] = None
    """Signal that is sent first."""
    exempt: Duration | None = None
    """Time after the start during which a job is not preempted."""
    requeued: bool | None = None
    """Whether Slurm requeues the job."""


class Queue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place to run: a partition, QOS, constraint or account, with its limits."""

    about: str = ""
    """Purpose of the queue."""
    node_class: str
    """Node type, a key of `node_classes`."""
    partition: str | None = None
    """Slurm partition."""
    qos: str | None = None
    """Slurm QOS."""
    constraint: str | None = None
    """Value for `--constraint`. All constraints of a job are combined with AND."""
    account_suffix: str | None = None
    """Suffix of the account in this queue. Overrides that of the node class."""
    default_time: Seconds | None = None
    """Default time limit."""
    limits: list[LimitRow] = []
    """Limits by node count. Without rows, nothing is checked."""
    size: Annotated[int | None, Meta(ge=1)] = None
    """Number of nodes of the queue. It bounds a job where the site states no limit of its own."""
    unknown: Annotated[dict[Literal["nodes", "time"], str], Meta(examples=[{"time": "docs.example.org/gpu"}])] = {}
    """Limits that no source states, each with the page that was read."""
    node_minutes: Annotated[int | None, Meta(ge=1)] = None
    """Maximum product of nodes and minutes per job."""
    gpus: Annotated[Range | None, Meta(examples=["4-"])] = None
    """Total number of GPUs that a job may request."""
    gpus_per_user: Annotated[int | None, Meta(ge=1)] = None
    """Maximum number of GPUs that the running jobs of a user may use."""
    max_jobs: Annotated[int | None, Meta(ge=1)] = None
    """Maximum number of running jobs per user."""
    max_submitted: Annotated[int | None, Meta(ge=1)] = None
    """Maximum number of queued and running jobs per user."""
    internet: Internet | None = None
    """Internet access of its nodes, if it differs from the site's `internet:`."""
    access: str = ""
    """Prerequisite for access, such as a scalability test."""
    exclusive: bool | Literal["implied", "forbidden"] = False
    """Whether jobs get whole nodes: true adds `--exclusive`, `implied` needs no option, `forbidden` rejects jobs
    that request it."""
    memory: Literal["all", "share", "per-gpu", "omit", "forbidden"] = "share"
    """Default memory request: `all` of the node (`--mem=0`), the `share` that belongs to the requested CPUs, the
    node class's `memory_per_gpu` for each GPU (`per-gpu`), or none (`omit`: implied by the site; `forbidden`: jobs
    that set memory are rejected)."""
    requeue: Literal["never", "scheduler", "expedite"] | None = None
    """Overrides `scheduler.requeue` for this queue."""
    preemption: Preemption | None = None
    """How jobs are preempted. Omit it if they are not."""
    sbatch: dict[str, Scalar] = {}
    """Extra sbatch options for this queue, by long name."""
    srun_options: list[str] = []
    """Extra srun options for this queue."""
    env: Annotated[list[Setting], Meta(extra={"merge": "append"})] = []
    """Variables for this queue. They override those of the node class."""
    stack: str | None = None
    """Entry of `stacks:`. Overrides that of the node class."""
    defaults: Annotated[dict[str, Any], Meta(extra={"holds": "job"})] = {}
    """Job file keys that apply in this queue."""

    @property
    def whole_nodes(self) -> bool:
        """Whether a job gets whole nodes."""
        return self.exclusive is True or self.exclusive == "implied"


class Account(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for the account to charge."""

    required: bool = False
    """Whether a job must specify an account."""
    pattern: str | None = None
    """Regular expression that must match the whole account name, including its suffix."""
    variables: Annotated[list[str], Meta(examples=[["SBATCH_ACCOUNT"]])] = []
    """Variables of the submitting shell that contain the default account."""
    find: Annotated[str, Meta(examples=["saldo -b"])] = ""
    """How users find their accounts: a command of the site, or a page."""
