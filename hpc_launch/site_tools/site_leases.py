"""The hosts of a site without a scheduler, and who uses them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.read_hostfile import SlotHost
from hpc_launch.schedulers.ssh.leases import HostLeases, leases_of
from hpc_launch.sites import this_machine
from hpc_launch.sites.choose_hosts import known_hosts
from hpc_launch.sites.load_profile import load_site_profile


class SiteHost(Struct, frozen=True):
    """A host of a site and its leases."""

    name: str
    slots: int
    leases: HostLeases

    def as_json(self) -> dict[str, object]:
        """The object of `nodes leases --json`."""
        return {
            "host": self.name,
            "slots": self.slots,
            "state": self.leases.state,
            "fault": self.leases.fault,
            "holders": msgspec.to_builtins(self.leases.holders),
        }


def site_hosts(site: str) -> Sequence[SlotHost]:
    """The hosts of a site.

    Raises Refused if the site is unknown or its hosts are invalid, UsageError if it has a scheduler.
    """
    place = Place("--site")
    profile = load_site_profile(site, place, Path.cwd())
    if profile.scheduler.type != "ssh":
        hint = "name a site with `scheduler: ssh`" + (
            "; `squeue` shows jobs" if profile.scheduler.type == "slurm" else ""
        )
        raise UsageError(f"site {profile.name} has no list of hosts: its scheduler is {profile.scheduler.type}", hint)
    findings: list[Finding] = []
    hosts = known_hosts(profile, this_machine.names(os.environ), os.getcwd(), place, findings)
    if errors(findings):
        raise Refused(findings)
    return hosts


def site_leases(site: str) -> list[SiteHost]:
    """Ask all hosts of a site who uses them. Raises as `site_hosts`."""
    hosts = site_hosts(site)
    leases = leases_of([host.name for host in hosts])
    return [SiteHost(host.name, host.slots, leases[host.name]) for host in hosts]
