"""A site profile, typed: what differs from cluster to cluster, as data. Docs and JSON schema are made from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.spec.job import NAME_PATTERN, Mebibytes, Scalar, Seconds


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


class LimitRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a queue's limits."""

    nodes: Annotated[
        str,
        Meta(
            description="Node counts that the row is for: `4`, `1-91`, or `92-` without an upper end.",
            pattern=r"^\d+(-\d*)?$",
        ),
    ]
    time: Annotated[Seconds, Meta(description="The longest time limit for these counts.")]


class Queue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place to run: a partition, a QOS or both, with its limits."""

    node_class: Annotated[str, Meta(description="The kind of node behind it: a key of `node_classes`.")]
    partition: Annotated[str | None, Meta(description="Slurm's partition.")] = None
    qos: Annotated[str | None, Meta(description="Slurm's QOS.")] = None
    default_time: Annotated[Seconds | None, Meta(description="Time limit where the job names none.")] = None
    limits: Annotated[list[LimitRow], Meta(description="Rows of node counts and time limits; no row, no check.")] = []
    exclusive: Annotated[bool, Meta(description="Whether jobs get whole nodes: adds `--exclusive`.")] = False
    memory: Annotated[
        Literal["all", "share", "omit"],
        Meta(
            description="What is asked for where the job names no memory: `all` of the node (`--mem=0`), the `share` "
            "of the CPUs asked for, or nothing (`omit`: the site forbids or implies it)."
        ),
    ] = "share"
    sbatch: Annotated[dict[str, Scalar], Meta(description="More sbatch options of this queue, by long name.")] = {}


class Account(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for the account to charge."""

    required: Annotated[bool, Meta(description="Whether a job must name one.")] = False
    pattern: Annotated[str | None, Meta(description="A regular expression that the whole name matches.")] = None


class SchedulerFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who runs the jobs here."""

    type: Annotated[Literal["slurm", "local"], Meta(description="Slurm, or this machine without any scheduler.")]
    requeue: Annotated[
        Literal["never", "scheduler"],
        Meta(
            description="Who starts a job again after its node failed or it was preempted: `never` Slurm (the script "
            "says `--no-requeue`), or the `scheduler` itself."
        ),
    ] = "never"

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`scheduler: slurm`."""
        return {"type": value} if isinstance(value, str) else None


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of a job find each other."""

    master_suffix: Annotated[
        str,
        Meta(
            description="Put behind the first node's name to get its address on the fast network (JSC: `i`).",
            pattern=r"^[A-Za-z0-9.-]*$",
        ),
    ] = ""
    ports: Annotated[
        tuple[int, int],
        Meta(
            description="First and last port for the rendezvous; below 32768, where the ephemeral ports begin.",
        ),
    ] = (10000, 29999)


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the step inside the job is started."""

    srun_options: Annotated[
        list[str], Meta(description="More options for srun, each a list item.", examples=[["--mpi=none"]])
    ] = []


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image that the site has."""

    path: Annotated[str, Meta(description="The file, or what the runtime calls it. `${paths.NAME}` may stand in it.")]
    torch: Annotated[str | None, Meta(description="PyTorch's version in it.", pattern=r"^\d+\.\d+")] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`NAME: PATH`."""
        return {"path": value} if isinstance(value, str) else None


class Containers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How images run here."""

    runtime: Annotated[
        Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud", "none"],
        Meta(description="What runs them where the job does not say."),
    ] = "apptainer"
    binds: Annotated[list[str], Meta(description="Folders that every container sees, as `PATH` or `PATH:INSIDE`.")] = []
    home: Annotated[bool, Meta(description="Whether the home folder is seen inside.")] = False
    writable: Annotated[bool, Meta(description="Whether an image's own files may be written to, in memory.")] = False
    options: Annotated[list[str], Meta(description="More options for the runtime, each a list item.")] = []
    images: Annotated[dict[str, Image], Meta(description="The images that job files name.")] = {}


class SiteProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster, or this machine."""

    name: Annotated[
        str, Meta(description="What `--site` calls it.", pattern=NAME_PATTERN, max_length=64, examples=["juwels"])
    ]
    title: Annotated[str, Meta(description="The name in full.")] = ""
    kind: Annotated[
        Literal["system", "template", "base"],
        Meta(description="A real `system`, a `template` to be filled in, or a `base` that others build on."),
    ] = "system"
    status: Annotated[
        Literal["verified", "documented", "draft"],
        Meta(description="`verified` on the system, `documented` from its published pages, or a `draft`."),
    ] = "draft"
    grade: Annotated[
        Literal["A", "B", "C"] | None, Meta(description="How good the sources are: A the centre's own, C hearsay.")
    ] = None
    source: Annotated[str | None, Meta(description="Where the facts come from.")] = None
    as_of: Annotated[str | None, Meta(description="The day they were read, YYYY-MM-DD.")] = None
    contact: Annotated[str | None, Meta(description="Who keeps the profile.")] = None
    url: Annotated[str | None, Meta(description="The site's own documentation.")] = None
    scheduler: Annotated[SchedulerFacts, Meta(description="Who runs the jobs.")]
    node_classes: Annotated[dict[str, NodeClass], Meta(description="The kinds of nodes, by a name.")]
    queues: Annotated[dict[str, Queue], Meta(description="The places to run, by a name that job files use.")]
    default_queue: Annotated[
        str | None, Meta(description="The queue of a job that names none; the first one if left out.")
    ] = None
    account: Annotated[Account, Meta(description="Rules for the account.")] = Account()
    paths: Annotated[
        dict[str, str],
        Meta(
            description="Folders that job files name as `${paths.NAME}`. `${user}`, `${home}`, `${account}` and "
            "`${env.NAME}` may stand in them.",
            examples=[{"scratch": "/scratch/${user}"}],
        ),
    ] = {}
    network: Annotated[Network, Meta(description="How processes find each other.")] = Network()
    launch: Annotated[Launch, Meta(description="How the step is started.")] = Launch()
    containers: Annotated[Containers, Meta(description="How images run here, and which there are.")] = Containers()
    defaults: Annotated[
        dict[str, Any],
        Meta(description="Keys of a job file that hold here unless the job says otherwise, such as `env`."),
    ] = {}


class Overlay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's own `user.yaml`: what no shared profile should hold, such as the account."""

    defaults: Annotated[dict[str, Any], Meta(description="Keys of a job file that hold on every site.")] = {}
    sites: Annotated[
        dict[str, dict[str, Any]], Meta(description="Keys of a job file that hold on one site, by its name.")
    ] = {}
