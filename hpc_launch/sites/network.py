"""`network:`, `launch:` and the hosts of a site profile: how to start the processes, and how they find each other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.hostlist import MAX_SLOTS

INTERFACE = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,30}$"


class MasterAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to derive the rendezvous address from the first node's name."""

    suffix: Annotated[
        str,
        Meta(
            description="Suffix of the node's name on the fast network (JSC: `i`).",
            pattern=r"^[A-Za-z0-9.-]*$",
        ),
    ] = ""
    interface: Annotated[
        str | None,
        Meta(
            description="Use the address of this network interface, determined on the first node. IPv4 is preferred.",
            pattern=INTERFACE,
            examples=["ib0"],
        ),
    ] = None
    resolve: Annotated[
        Literal["name", "fqdn", "ip"],
        Meta(
            description="What to pass to the processes: the `name`, the fully qualified name (`fqdn`), or the "
            "name's `ip` address on the first node. IPv4 is preferred."
        ),
    ] = "name"


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of a job find each other."""

    master: Annotated[MasterAddress, Meta(description="Rendezvous address.")] = MasterAddress()
    interface: Annotated[
        list[Annotated[str, Meta(pattern=INTERFACE)]],
        Meta(
            description="Network interfaces for the sockets of NCCL and Gloo, by full name. Sets "
            "`NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` unless the job does.",
            examples=[["ib0"]],
        ),
    ] = []
    ports: Annotated[
        tuple[int, int],
        Meta(
            description="First and last port for the rendezvous, below the ephemeral ports, which start at 32768.",
        ),
    ] = (10000, 29999)


class Binding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An srun binding option, by type of task."""

    node: Annotated[
        str | None, Meta(description="For tasks that span a whole node: torchrun, and DeepSpeed without ssh.")
    ] = None
    process: Annotated[str | None, Meta(description="For tasks with one process: `launcher: srun`.")] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`cpu_bind: cores`: for tasks with one process."""
        return {"process": value} if isinstance(value, str) else None


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to start the job step."""

    step: Annotated[
        Literal["srun", "ibrun", "mpirun"],
        Meta(description="Command that starts one command per node: Slurm's srun, TACC's ibrun, or MPI's mpirun."),
    ] = "srun"
    srun_options: Annotated[
        list[str], Meta(description="Extra options for srun, one list item each.", examples=[["--mpi=none"]])
    ] = []
    mpirun: Annotated[
        Literal["openmpi", "hydra"],
        Meta(description="Implementation of mpirun: Open MPI, or Hydra (MPICH, Intel MPI, MVAPICH)."),
    ] = "openmpi"
    mpirun_options: Annotated[list[str], Meta(description="Extra options for mpirun, one list item each.")] = []
    multinode: Annotated[
        Literal["no_ssh", "pdsh"],
        Meta(
            description="Default for `launcher: deepspeed`: started on every node by the step (`no_ssh`), or once, "
            "and then starting the nodes itself over ssh (`pdsh`)."
        ),
    ] = "no_ssh"
    cpu_bind: Annotated[
        Binding,
        Meta(
            description="`--cpu-bind` of srun: a type such as `cores`, or a mask for each process of a node. One "
            "NUMA node per process: `map_ldom:3,1,0,2`.",
            examples=[{"node": "none", "process": "cores"}],
        ),
    ] = Binding()
    mem_bind: Annotated[Binding, Meta(description="`--mem-bind` of srun, such as `local`.")] = Binding()
    gpu_bind: Annotated[
        Binding,
        Meta(
            description="`--gpu-bind` of srun, such as `none`, `closest`, or `map_gpu:3,2,1,0`. A process bound to "
            "one GPU sees only that GPU, as number 0.",
            examples=[{"process": "none"}],
        ),
    ] = Binding()
    gpus_per_task: Annotated[
        bool, Meta(description="`launcher: srun`: pass `--gpus-per-task` to srun, which also binds GPUs (CSCS).")
    ] = False
    gpu_sharing: Annotated[
        bool,
        Meta(
            description="`launcher: srun`: pass `--gres-flags=allow-task-sharing`, so that bound processes can "
            "access each other's GPUs directly (Slurm 23.11.4 and later)."
        ),
    ] = False


HOST_NAME = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$")]


class SshHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host of `scheduler: ssh`."""

    slots: Annotated[
        int | None,
        Meta(
            description="Processes that run on the host, one per GPU. Default: the GPUs of the first node class, or 1. "
            "A host file replaces it.",
            ge=1,
            le=MAX_SLOTS,
        ),
    ] = None
    address: Annotated[
        str | None,
        Meta(
            description="Name or IPv4 address by which the other hosts reach it. Default: its own name, which may "
            "otherwise be an alias in `~/.ssh/config`.",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$",
            examples=["10.0.0.1"],
        ),
    ] = None
    interface: Annotated[
        str | None,
        Meta(
            description="Network interface for the sockets of NCCL and Gloo on this host. Sets `NCCL_SOCKET_IFNAME` "
            "and `GLOO_SOCKET_IFNAME` unless the job does.",
            pattern=INTERFACE,
            examples=["ens1f0"],
        ),
    ] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`gpu1: 8`: the slots."""
        return {"slots": value} if isinstance(value, int) and not isinstance(value, bool) else None


class JobHost(Struct, frozen=True):
    """A host that a job runs on. `slots` is its number of processes; `devices` are its GPUs, if not all."""

    name: str
    slots: int
    address: str
    interface: str = ""
    devices: tuple[int, ...] = ()
