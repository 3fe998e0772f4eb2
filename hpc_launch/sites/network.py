"""`network:`, `launch:` and the hosts of a site profile: how to start the processes, and how they find each other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.job.hostlist import MAX_SLOTS
from hpc_launch.job.type_hints import short_form

INTERFACE = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,30}$"


class MasterAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to derive the rendezvous address from the first node's name."""

    suffix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]*$")] = ""
    """Suffix of the node's name on the fast network (JSC: `i`)."""
    interface: Annotated[str | None, Meta(pattern=INTERFACE, examples=["ib0"])] = None
    """Use the address of this network interface, determined on the first node. IPv4 is preferred."""
    resolve: Literal["name", "fqdn", "ip"] = "name"
    """What to pass to the processes: the `name`, the fully qualified name (`fqdn`), or the name's `ip` address on
    the first node. IPv4 is preferred."""


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of a job find each other."""

    master: MasterAddress = MasterAddress()
    """Rendezvous address."""
    interface: Annotated[list[Annotated[str, Meta(pattern=INTERFACE)]], Meta(examples=[["ib0"]])] = []
    """Network interfaces for the sockets of NCCL and Gloo, by full name. Sets `NCCL_SOCKET_IFNAME` and
    `GLOO_SOCKET_IFNAME` unless the job does."""
    ports: tuple[int, int] = (10000, 29999)
    """First and last port for the rendezvous, below the ephemeral ports, which start at 32768."""


class Binding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An srun binding option, by type of task."""

    node: str | None = None
    """For tasks that span a whole node: torchrun, and DeepSpeed without ssh."""
    process: str | None = None
    """For tasks with one process: `launcher: srun`."""

    __short_forms__ = short_form("`cpu_bind: cores`: for tasks with one process.", {str: "process"})


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to start the job step."""

    step: Literal["srun", "ibrun", "mpirun"] = "srun"
    """Command that starts one command per node: Slurm's srun, TACC's ibrun, or MPI's mpirun."""
    srun_options: Annotated[list[str], Meta(examples=[["--mpi=none"]])] = []
    """Extra options for srun, one list item each."""
    mpirun: Literal["openmpi", "hydra"] = "openmpi"
    """Implementation of mpirun: Open MPI, or Hydra (MPICH, Intel MPI, MVAPICH)."""
    mpirun_options: list[str] = []
    """Extra options for mpirun, one list item each."""
    node_order: Literal["names", "switches"] = "names"
    """Order of a job's nodes, which the ranks follow: Slurm's, which is that of their `names`, or by `switches`: nodes
    of a switch, or of a block, beside each other, as in `scontrol show topology`. For fixed numbers of nodes that srun
    starts. Not needed where Slurm has `TopologyParam=SwitchAsNodeRank` or `BlockAsNodeRank` (slurm.conf(5))."""
    multinode: Literal["no_ssh", "pdsh"] = "no_ssh"
    """Default for `launcher: deepspeed`: started on every node by the step (`no_ssh`), or once, and then starting
    the nodes itself over ssh (`pdsh`)."""
    cpu_bind: Annotated[Binding, Meta(examples=[{"node": "none", "process": "cores"}])] = Binding()
    """`--cpu-bind` of srun: a type such as `cores`, or a mask for each process of a node. One NUMA node per
    process: `map_ldom:3,1,0,2`."""
    mem_bind: Binding = Binding()
    """`--mem-bind` of srun, such as `local`."""
    numa_binding: Literal["exclusive", "node", "off"] | None = None
    """CPUs of a process: its own part of its GPU's NUMA domain (`exclusive`, the default), or all of it (`node`)."""
    gpu_bind: Annotated[Binding, Meta(examples=[{"process": "none"}])] = Binding()
    """`--gpu-bind` of srun, such as `none`, `closest`, or `map_gpu:3,2,1,0`. A process bound to one GPU sees only
    that GPU, as number 0."""
    gpus_per_task: bool = False
    """`launcher: srun`: pass `--gpus-per-task` to srun, which also binds GPUs (CSCS)."""
    gpu_sharing: bool = False
    """`launcher: srun`: pass `--gres-flags=allow-task-sharing`, so that bound processes can access each other's
    GPUs directly (Slurm 23.11.4 and later)."""


HOST_NAME = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$")]


class SshHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host of `scheduler: ssh`."""

    slots: Annotated[int | None, Meta(ge=1, le=MAX_SLOTS)] = None
    """Processes that run on the host, one per GPU. Default: the GPUs of the first node class, or 1. A host file
    replaces it."""
    address: Annotated[str | None, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$", examples=["10.0.0.1"])] = None
    """Name or IPv4 address by which the other hosts reach it. Default: its own name, which may otherwise be an
    alias in `~/.ssh/config`."""
    interface: Annotated[str | None, Meta(pattern=INTERFACE, examples=["ens1f0"])] = None
    """Network interface for the sockets of NCCL and Gloo on this host. Sets `NCCL_SOCKET_IFNAME` and
    `GLOO_SOCKET_IFNAME` unless the job does."""

    __short_forms__ = short_form("`gpu1: 8`: the slots.", {int: "slots"})


class JobHost(Struct, frozen=True):
    """A host that a job runs on. `slots` is its number of processes; `devices` are its GPUs, if not all."""

    name: str
    slots: int
    address: str
    interface: str = ""
    devices: tuple[int, ...] = ()
