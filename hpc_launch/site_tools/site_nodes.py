"""The nodes of a site: the store of its node health, the hosts of one without a scheduler, and who uses them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.job.hostlist import SlotHost
from hpc_launch.job.shell_text import UnknownName, interpolate, plain
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.schedulers.ssh.ssh_hosts import HostLeases, leases_of
from hpc_launch.sites import this_machine
from hpc_launch.sites.read_profile import load_site_profile
from hpc_launch.sites.this_machine import known_hosts


class SiteHost(Struct, frozen=True):
    """A host of a site and its leases."""

    name: str
    slots: int
    leases: HostLeases

    def as_json(self) -> dict[str, object]:
        """The object of `nodes leases --json`."""
        leases = msgspec.to_builtins(self.leases)
        return {"host": self.name, "slots": self.slots, "state": self.leases.state, **leases}


def site_hosts(site: str) -> Sequence[SlotHost]:
    """The hosts of a site.

    Raises Refused if the site is unknown or its hosts are invalid, UsageError if it has a scheduler.
    """
    place = Place("--site")
    profile = load_site_profile(site, place, Path.cwd())
    if profile.scheduler.type != "ssh":
        hint = "name a site with `scheduler: ssh`"
        hint += "; `squeue` shows jobs" if profile.scheduler.type == "slurm" else ""
        raise UsageError(f"site {profile.name} has no list of hosts: its scheduler is {profile.scheduler.type}", hint)
    return known_hosts(profile, this_machine.names(os.environ), os.getcwd(), place)


def site_leases(site: str) -> list[SiteHost]:
    """Ask all hosts of a site who uses them. Raises as `site_hosts`."""
    hosts = site_hosts(site)
    leases = leases_of([host.name for host in hosts])
    return [SiteHost(host.name, host.slots, leases[host.name]) for host in hosts]


def node_health_store(site: str) -> NodeHealthStore:
    """Node health records of a site's team. Raises Refused if the site is unknown or its `paths.ledger` cannot be
    resolved."""
    place = Place("--site")
    profile = load_site_profile(site, place, Path.cwd())
    folder = profile.paths.get("ledger")
    if folder is None:
        return NodeHealthStore(profile.name)
    try:
        path = plain(interpolate(folder.path, this_machine.names(os.environ)))
    except UnknownName as unknown:
        message = f"`paths.ledger` uses `${{{unknown.name}}}`, which is only known in a job"
        hint = "use one fixed folder for the whole team"
        raise Refused([Finding(FindingCode.INVALID_LEDGER_PATH, message, place, hint)]) from unknown
    return NodeHealthStore(profile.name, path)
