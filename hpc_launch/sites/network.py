"""`network:` and `launch:` of a site profile: how processes are started and find each other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

INTERFACE = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,30}$"


class Master(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the address of the first node, where the processes meet, is made from its name."""

    suffix: Annotated[
        str,
        Meta(
            description="Put behind the node's name to get its name on the fast network (JSC: `i`).",
            pattern=r"^[A-Za-z0-9.-]*$",
        ),
    ] = ""
    interface: Annotated[
        str | None,
        Meta(
            description="Take the address that this network interface has on the node, asked for on the node itself; "
            "IPv4 if it has one.",
            pattern=INTERFACE,
            examples=["ib0"],
        ),
    ] = None
    resolve: Annotated[
        Literal["name", "fqdn", "ip"],
        Meta(
            description="What is handed on: the `name`, the name in full (`fqdn`), or the `ip` address that the name "
            "stands for on the first node, IPv4 if there is one."
        ),
    ] = "name"


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of a job find each other."""

    master: Annotated[Master, Meta(description="The address where they meet.")] = Master()
    interface: Annotated[
        list[Annotated[str, Meta(pattern=INTERFACE)]],
        Meta(
            description="The network interfaces, by their full names, through which NCCL and Gloo open their sockets: "
            "`NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` are set from it unless the job sets them.",
            examples=[["ib0"]],
        ),
    ] = []
    ports: Annotated[
        tuple[int, int],
        Meta(
            description="First and last port for the rendezvous; below 32768, where the ephemeral ports begin.",
        ),
    ] = (10000, 29999)


class Binding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What srun is told, by what a task of it is."""

    node: Annotated[
        str | None, Meta(description="Where a task is a whole node: torchrun, and DeepSpeed without ssh.")
    ] = None
    process: Annotated[str | None, Meta(description="Where a task is one process: `launcher: srun`.")] = None

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`cpu_bind: cores`: for tasks of one process."""
        return {"process": value} if isinstance(value, str) else None


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the step inside the job is started."""

    step: Annotated[
        Literal["srun", "ibrun", "mpirun"],
        Meta(description="What starts a command on every node: Slurm's own srun, TACC's ibrun, or an MPI's mpirun."),
    ] = "srun"
    srun_options: Annotated[
        list[str], Meta(description="More options for srun, each a list item.", examples=[["--mpi=none"]])
    ] = []
    mpirun: Annotated[
        Literal["openmpi", "hydra"],
        Meta(description="Whose mpirun it is: Open MPI's, or Hydra (MPICH, Intel MPI, MVAPICH)."),
    ] = "openmpi"
    mpirun_options: Annotated[list[str], Meta(description="More options for mpirun, each a list item.")] = []
    multinode: Annotated[
        Literal["no_ssh", "pdsh"],
        Meta(
            description="`launcher: deepspeed` where the job does not say: started on every node by the step "
            "(`no_ssh`), or once, to start the nodes itself over ssh (`pdsh`)."
        ),
    ] = "no_ssh"
    cpu_bind: Annotated[
        Binding,
        Meta(
            description="srun's `--cpu-bind`: a type such as `cores`, or a mask for each process of a node. A NUMA "
            "node for each process: `map_ldom:3,1,0,2`.",
            examples=[{"node": "none", "process": "cores"}],
        ),
    ] = Binding()
    mem_bind: Annotated[Binding, Meta(description="srun's `--mem-bind`, such as `local`.")] = Binding()
    gpu_bind: Annotated[
        Binding,
        Meta(
            description="srun's `--gpu-bind`, such as `none`, `closest`, or `map_gpu:3,2,1,0`. A process that is "
            "bound to one GPU sees no other, and calls its own number 0.",
            examples=[{"process": "none"}],
        ),
    ] = Binding()
    gpus_per_task: Annotated[
        bool, Meta(description="`launcher: srun`: ask srun for `--gpus-per-task`, which also binds (CSCS).")
    ] = False
    gpu_sharing: Annotated[
        bool,
        Meta(
            description="`launcher: srun`: `--gres-flags=allow-task-sharing`, so that bound processes still reach each "
            "other's GPUs directly (Slurm 23.11.4 and later)."
        ),
    ] = False
