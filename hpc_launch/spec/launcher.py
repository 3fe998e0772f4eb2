"""`launcher:` of a job file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

LauncherName = Literal["torchrun", "deepspeed", "srun", "none", "ft_launcher"]
"""Each has a module in `plan/launchers/` and a template in `slurm_templates/launcher/`."""


class Launcher(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of the training are started."""

    name: Annotated[
        LauncherName,
        Meta(
            description="`torchrun` and `deepspeed` are started once a node and start the processes there; `srun` "
            "starts each process itself, with RANK, LOCAL_RANK and WORLD_SIZE set. With `none` the program is "
            "started once, on the first node, and starts its processes itself, by srun or over ssh; the nodes are in "
            "`${attempt.dir}/hostfile`. `ft_launcher` is a torchrun of nvidia-resiliency-ext, which also restarts hung "
            "processes."
        ),
    ]
    options: Annotated[
        list[str],
        Meta(
            description="More options for the launcher itself, as it spells them, each a list item.",
            examples=[["--log-line-prefix-template=x"]],
        ),
    ] = []
    rendezvous: Annotated[
        Literal["static", "c10d"] | None,
        Meta(
            description="torchrun: how its agents meet. `static` (the default) keeps the order of the nodes; `c10d` "
            "can start the processes again and go on with fewer nodes, and is the default where the job asks for that."
        ),
    ] = None
    max_restarts: Annotated[
        int | None,
        Meta(
            description="torchrun, ft_launcher: how often the processes are restarted inside the job. Default: 0 for "
            "torchrun, 3 for an elastic run and for ft_launcher. Requires `c10d`.",
            ge=0,
        ),
    ] = None
    multinode: Annotated[
        Literal["no_ssh", "pdsh"] | None,
        Meta(
            description="deepspeed: `no_ssh` has the site's step start it on every node; `pdsh` starts it once, and it "
            "starts the nodes itself over ssh, from a hostfile. The site's choice if left out."
        ),
    ] = None
    numa_binding: Annotated[
        Literal["node", "socket", "exclusive", "core-complex"] | None,
        Meta(description="torchrun 2.9 and later: which CPUs each process is bound to. Needs `numactl` on the nodes."),
    ] = None

    def optional_keys(self) -> list[str]:
        """The keys that belong to some launchers only and are given."""
        common = ("name", "options")
        return [key for key in self.__struct_fields__ if key not in common and getattr(self, key) is not None]

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`launcher: torchrun`."""
        return {"name": value} if isinstance(value, str) else None
