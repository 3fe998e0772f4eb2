"""The hosts that a job gets where a profile has `scheduler: ssh`: of its own list, or of a host file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_launch.base.files import read_text
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.hostlist import SlotHost, expand, filter_hosts, read_hostfile
from hpc_launch.job.job import JobSpec
from hpc_launch.job.shell_text import UnknownName, interpolate, plain
from hpc_launch.sites.network import JobHost, SshHost
from hpc_launch.sites.profile import SiteProfile

MAX_HOSTFILE_BYTES = 4 << 20


def job_hosts(  # noqa: PLR0917 - what hosts depend on
    site: SiteProfile,
    job: JobSpec,
    avoid: Sequence[str],
    names: Mapping[str, str],
    folder: str,
    place: Place | None,
    findings: list[Finding],
) -> tuple[tuple[JobHost, ...], int]:
    """The first hosts of the profile that are not excluded, for the job and its spares, with a finding if there are too
    few; and how many hosts it has. An attempt that avoids hosts may have fewer spares."""
    known = known_hosts(site, names, folder, place, findings)
    if errors(findings):
        return (), 0
    excluded = _excluded([*job.exclude, *avoid, *site.bad_nodes.nodes])
    free = [host for host in known if host.name not in excluded]
    if len(free) < (job.max_nodes if avoid else job.held_nodes):
        several = "host" if len(known) == 1 else "hosts"
        spares = f" and {job.spares} spare" if job.spares else ""
        message = f"{job.max_nodes} nodes{spares} requested, but site {site.name} has {len(known)} {several}"
        message += f", of which {len(known) - len(free)} are excluded" if len(free) < len(known) else ""
        hint = "request fewer nodes, or add hosts to the profile or host file"
        findings.append(Finding(FindingCode.NODES_OUT_OF_LIMITS, message, place, hint))
    listed = site.scheduler.hosts
    result = []
    for host in free[: job.held_nodes]:
        details = listed.get(host.name, SshHost())
        address, interface = details.address or host.name, details.interface or ""
        result.append(JobHost(host.name, host.slots, address, interface, host.devices))
    return tuple(result), len(known)


def known_hosts(
    site: SiteProfile, names: Mapping[str, str], folder: str, place: Place | None, findings: list[Finding]
) -> Sequence[SlotHost]:
    """The hosts of a profile with their slots, after its filters; none with a finding if they are invalid.

    `names` are the values of `${...}`, `folder` is where a relative host file begins.
    """
    scheduler = site.scheduler
    hosts: Sequence[SlotHost] = ()
    if scheduler.hostfile is not None:
        hosts = _from_file(scheduler.hostfile, names, folder, place, findings)
        unknown = [] if errors(findings) else sorted(set(scheduler.hosts) - {host.name for host in hosts})
        if unknown:
            message = f"`{unknown[0]}` is in `scheduler.hosts` but not in the host file"
            findings.append(Finding(FindingCode.INVALID_HOSTFILE, message, place, "add it to the file, or remove it"))
    else:
        first = next(iter(site.node_classes.values()), None)
        gpus = first.gpus if first is not None else 0
        hosts = [SlotHost(name, host.slots or gpus or 1) for name, host in scheduler.hosts.items()]
    if not hosts and not errors(findings):
        hint = "add `hosts: {NAME: SLOTS}` or `hostfile: FILE` to `scheduler:` of the profile"
        findings.append(Finding(FindingCode.INVALID_HOSTFILE, f"site {site.name} names no hosts", place, hint))
    if errors(findings):
        return ()
    left, fault = filter_hosts(hosts, scheduler.include, scheduler.exclude)
    if fault is not None:
        hint = "write `HOST:SLOT,SLOT@HOST`, as for DeepSpeed's --include and --exclude"
        findings.append(Finding(FindingCode.INVALID_HOSTFILE, fault, place, hint))
    return left


def _from_file(
    file: str, names: Mapping[str, str], folder: str, place: Place | None, findings: list[Finding]
) -> Sequence[SlotHost]:
    try:
        written = plain(interpolate(file, names)) or ""
        path = os.path.join(folder, os.path.expanduser(written))
        text = read_text(Path(path), longest=MAX_HOSTFILE_BYTES)
    except UnknownName as error:
        findings.append(Finding(FindingCode.UNKNOWN_NAME, f"unknown name in `hostfile`: {error}", place, None))
        return ()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the host file: {error}"
        findings.append(Finding(FindingCode.UNREADABLE_FILE, message, place, "create it, or correct `hostfile`"))
        return ()
    hosts, faults = read_hostfile(text, path)
    findings += faults
    return hosts


def _excluded(host_lists: Sequence[str]) -> set[str]:
    names: set[str] = set()
    for text in host_lists:
        try:
            names.update(expand(text))
        except ValueError:
            names.add(text)
    return names
