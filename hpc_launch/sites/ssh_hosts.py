"""`scheduler: ssh` of a site profile: hosts with their slots, addresses and interfaces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.job.hostlist import MAX_SLOTS
from hpc_launch.sites.network import INTERFACE

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
