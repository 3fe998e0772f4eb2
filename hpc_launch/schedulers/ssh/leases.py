"""Who uses the hosts of a site without a scheduler, by the leases that lie on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpc_launch.base.installed import AGENT
from hpc_launch.schedulers.ssh.ssh_command import HostReply, ask_hosts

PROGRAM = AGENT / "lease.py"
QUERY_S = 20.0
_Text = Annotated[str, Meta(max_length=100)]


class LeaseHolder(Struct, frozen=True):
    """A run that uses a host, by its lease. `user` is the owner of the file; the rest is what that user wrote."""

    user: _Text
    run: _Text
    job_id: _Text
    since: Annotated[float, Meta(gt=0, lt=1e11)]
    """Seconds since the epoch, by the clock of the host."""


class HostLeases(Struct, frozen=True):
    """The holders of a host, the first one first; or why they are unknown."""

    holders: tuple[LeaseHolder, ...] = ()
    fault: str | None = None

    @property
    def state(self) -> str:
        """`used`, `free` or `unknown`."""
        return "unknown" if self.fault is not None else "used" if self.holders else "free"


def leases_of(hosts: Sequence[str], timeout_s: float = QUERY_S) -> dict[str, HostLeases]:
    """The holders of each host, asked at the same time. A host that does not answer is not an error."""
    return {host: _read(reply) for host, reply in ask_hosts(hosts, PROGRAM, ["--json"], timeout_s).items()}


def _read(reply: HostReply) -> HostLeases:
    if reply.fault is not None:
        return HostLeases(fault=reply.fault)
    try:
        return HostLeases(msgspec.json.decode(reply.text, type=tuple[LeaseHolder, ...]))
    except msgspec.MsgspecError as error:
        return HostLeases(fault=f"unexpected answer: {error}")


def holders_of(run: str, leases: Mapping[str, HostLeases]) -> dict[str, list[str]]:
    """The hosts of a run by their state for it, in words."""
    states: dict[str, list[str]] = {}
    for host, found in leases.items():
        if found.fault is not None:
            words = f"lease unknown: {found.fault}"
        elif any(one.run == run for one in found.holders):
            words = "leased by this run"
        elif found.holders:
            words = f"in use by {found.holders[0].user}: run {found.holders[0].run}"
        else:
            words = "not leased"
        states.setdefault(words, []).append(host)
    return states
