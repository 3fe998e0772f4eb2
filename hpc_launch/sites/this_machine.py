"""The machine that plans a job, the names that `${…}` can refer to, and the hosts of a site without a scheduler."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from hpc_launch.base.errors import Refused
from hpc_launch.base.files import read_text, user
from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.base.patterns import SECRET_NAME
from hpc_launch.base.run_program import run_program
from hpc_launch.job.container import Environment
from hpc_launch.job.hostlist import SlotHost, expand, filter_hosts, names_or_text, read_hostfile
from hpc_launch.job.job import JobSpec
from hpc_launch.job.shell_text import Text, UnknownName, interpolate, plain
from hpc_launch.sites.folders import MAX_PATH, Image
from hpc_launch.sites.network import JobHost, SshHost
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.read_profile import Site
from hpc_launch.sites.resolved import Logins, Submitter

MAX_BAD_NODES_BYTES = 64 << 10
"""Size of the largest `bad_nodes.file`."""
MAX_BAD_NODES = 500
CONDA_TIMEOUT_S = 20.0
_HOST_LIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]-]*\Z")


def with_local_hardware(site: SiteProfile, nodes: int) -> SiteProfile:
    """The `local` profile with this machine's CPUs and GPUs divided among its `nodes`.

    GPUs are counted by NVIDIA's device files, or by AMD's render nodes if its driver is loaded.
    """
    machine = os.uname().machine
    arch: Literal["x86_64", "aarch64"] | None = machine if machine in ("x86_64", "aarch64") else None  # type: ignore[assignment]
    all_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    nvidia = len(glob.glob("/dev/nvidia[0-9]*"))
    amd = len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0
    cpus, gpus = max(all_cpus // nodes, 1), (nvidia or amd) // nodes
    own = {name: replace(node, cpus=cpus, gpus=gpus, arch=arch) for name, node in site.node_classes.items()}
    return replace(site, node_classes=own)


def names(environment: Mapping[str, str]) -> dict[str, str]:
    """Values for `${…}` besides paths: user, home, hpc-launch's own interpreter and the shell's variables, except those
    that are secrets by their names."""
    values = {f"env.{name}": value for name, value in environment.items() if not SECRET_NAME.search(name)}
    values["home"] = os.path.expanduser("~")
    values["user"] = environment.get("USER") or environment.get("LOGNAME") or user()
    values["launcher.python"] = sys.executable
    values["runs"] = environment.get("HPC_LAUNCH_HOME") or os.path.join(values["home"], "hpc-launch", "runs")
    return values


def logins(environment: Mapping[str, str]) -> Logins | None:
    """The login file that wandb and others read on this machine, with its host names. None if there is none."""
    import netrc

    path = environment.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        hosts = netrc.netrc(path).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return None
    return Logins(path, frozenset(hosts))


def submitter() -> Submitter:
    """Folder and host in which a job is planned."""
    try:
        return Submitter(os.getcwd(), os.uname().nodename)
    except OSError:  # the folder was deleted
        return Submitter("", os.uname().nodename)


def listed_nodes(file: str | None, names: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes in a profile's `bad_nodes.file`, at most MAX_BAD_NODES. `#` starts a comment; lines that are no valid
    host lists are ignored, because others may write to the file."""
    found: dict[str, None] = {}
    with suppress(OSError, UnicodeDecodeError, UnknownName):
        path = plain(interpolate(file or "", names))
        for line in read_text(Path(path or ""), longest=MAX_BAD_NODES_BYTES).splitlines():
            text = line.partition("#")[0].strip()
            if _HOST_LIST.match(text) and len(found) < MAX_BAD_NODES:
                with suppress(ValueError):
                    found.update(dict.fromkeys(expand(text)))
    return tuple(found)[:MAX_BAD_NODES]


def torch_version(
    environment: Environment, names: Mapping[str, str], *, in_image: bool, image: Image | None
) -> tuple[int, int] | None:
    """PyTorch version as declared by the job or the site's image, or from the metadata next to the job's interpreter.

    None if it is unknown, or if the job runs in an image that does not declare it.
    """
    declared = re.match(r"(\d+)\.(\d+)", environment.torch or (image and image.torch) or "")
    if declared:
        return int(declared[1]), int(declared[2])
    if in_image:
        return None
    python = (environment.python or "").replace("${launcher.python}", names["launcher.python"])
    prefix = environment.venv or os.path.dirname(os.path.dirname(python))
    packages = os.path.join(os.path.expanduser(prefix), "lib", "python3*", "site-packages")
    metadata = glob.glob(os.path.join(packages, "torch-*.dist-info"))
    version = re.search(r"torch-(\d+)\.(\d+)[^/]*\Z", metadata[0]) if prefix and metadata else None
    return (int(version[1]), int(version[2])) if version else None


def conda_problem(name: str, environment: Environment, folder: str) -> str | None:
    """What is wrong with a conda environment, as far as that is known here: modules may bring another conda. Relative
    paths start at `folder`."""
    if "/" in name:
        path = os.path.join(folder, os.path.expanduser(name))
        return None if os.path.isdir(os.path.join(path, "conda-meta")) else "does not exist"
    conda = os.environ.get("CONDA_EXE") or shutil.which("conda")
    if conda is None or environment.modules or environment.source or os.path.isdir(f"{conda}/../../envs/{name}"):
        return None
    with suppress(OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        found = json.loads(run_program([conda, "env", "list", "--json"], CONDA_TIMEOUT_S).stdout)
        known = {os.path.basename(path) for path in found["envs"]} | {"base", "root"}
        return None if name in known else f"is not known to {conda}"
    return None


NOT_SET_HERE = "-is-not-set-here"
"""End of the placeholder for a variable of the site that is not set on another machine."""


def interpolation_names(
    site: Site, job: JobSpec, late: dict[str, Text], findings: list[Finding], *, away: bool
) -> dict[str, str]:
    """The names with their values. Names that only the job knows are added to `late`.

    `away`: this machine is not the site, so that a missing variable gets a placeholder.
    """
    values = names(os.environ)
    webhook = job.notify.webhook if job.notify is not None else None
    for secret in (*job.secrets, *([webhook.secret] if webhook is not None else [])):
        values.pop(f"env.{secret}", None)  # the script and its folder's name are no place for it
    values["job.name"] = job.name
    if job.account is not None:
        # Name of the project: folders have it without the account suffix for the hardware.
        suffixes = [queue.account_suffix for queue in site.profile.queues.values()]
        suffixes += [node.account_suffix for node in site.profile.node_classes.values()]
        suffix = max((one for one in suffixes if one and job.account.endswith(one)), key=len, default="")
        values["account"] = job.account.removesuffix(suffix) or job.account
    for key, folder in site.profile.paths.items():
        place = site.merged.places.get(("paths", key, "path"))
        try:
            text = interpolate(folder.path, _Placeholders(values) if away else values, late=late)
        except UnknownName as unknown:
            if f"${{paths.{key}}}" in repr(job):
                message, hint = f"unknown name `${{{unknown.name}}}`", "the job uses this path; set the variable"
                findings.append(Finding(FindingCode.UNKNOWN_NAME, message, place, hint))
            continue
        path = plain(text)
        if path is not None and len(path) > MAX_PATH:
            message = f"`paths.{key}` is too long: {len(path)} characters"
            findings.append(Finding(FindingCode.INVALID_VALUE, message, place, "shorten the names in it"))
        elif path is not None:
            values[f"paths.{key}"] = path
        else:
            late[f"paths.{key}"] = text
    return values


class _Placeholders(dict[str, str]):
    """Names, with a placeholder for each variable that is not set on this machine."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).startswith("env.")

    def __missing__(self, name: str) -> str:
        if name.startswith("env."):
            return f"/{name[4:]}{NOT_SET_HERE}"
        raise KeyError(name)


MAX_HOSTFILE_BYTES = 4 << 20


def job_hosts(  # noqa: PLR0917 - what hosts depend on
    site: SiteProfile, job: JobSpec, avoid: Sequence[str], names: Mapping[str, str], folder: str, place: Place | None
) -> tuple[tuple[JobHost, ...], int]:
    """The first hosts of the profile that are not excluded, for the job and its spares; and how many hosts it has.

    An attempt that avoids hosts may have fewer spares. Raises Refused if there are too few.
    """
    known = known_hosts(site, names, folder, place)
    excluded = {name for text in (*job.exclude, *avoid, *site.bad_nodes.nodes) for name in names_or_text(text)}
    free = [host for host in known if host.name not in excluded]
    if len(free) < (job.max_nodes if avoid else job.held_nodes):
        several = "host" if len(known) == 1 else "hosts"
        spares = f" and {job.spares} spare" if job.spares else ""
        message = f"{job.max_nodes} nodes{spares} requested, but site {site.name} has {len(known)} {several}"
        message += f", of which {len(known) - len(free)} are excluded" if len(free) < len(known) else ""
        hint = "request fewer nodes, or add hosts to the profile or host file"
        raise Refused([Finding(FindingCode.NODES_OUT_OF_LIMITS, message, place, hint)])
    result = []
    for host in free[: job.held_nodes]:
        details = site.scheduler.hosts.get(host.name, SshHost())
        address, interface = details.address or host.name, details.interface or ""
        result.append(JobHost(host.name, host.slots, address, interface, host.devices))
    return tuple(result), len(known)


def known_hosts(site: SiteProfile, names: Mapping[str, str], folder: str, place: Place | None) -> Sequence[SlotHost]:
    """The hosts of a profile with their slots, after its filters. Raises Refused if they are invalid.

    `names` are the values of `${...}`, `folder` is where a relative host file begins.
    """
    scheduler = site.scheduler
    if scheduler.hostfile is not None:
        hosts = _from_file(scheduler.hostfile, names, folder, place)
    else:
        first = next(iter(site.node_classes.values()), None)
        gpus = first.gpus if first is not None else 0
        hosts = [SlotHost(name, host.slots or gpus or 1) for name, host in scheduler.hosts.items()]
    unknown = sorted(set(scheduler.hosts) - {host.name for host in hosts})
    left, fault = filter_hosts(hosts, scheduler.include, scheduler.exclude)
    hint = "write `HOST:SLOT,SLOT@HOST`, as for DeepSpeed's --include and --exclude"
    if unknown:
        fault = f"`{unknown[0]}` is in `scheduler.hosts` but not in the host file"
        hint = "add it to the file, or remove it"
    elif not hosts:
        fault = f"site {site.name} names no hosts"
        hint = "add `hosts: {NAME: SLOTS}` or `hostfile: FILE` to `scheduler:` of the profile"
    if fault is not None:
        raise Refused([Finding(FindingCode.INVALID_HOSTFILE, fault, place, hint)])
    return left


def _from_file(file: str, names: Mapping[str, str], folder: str, place: Place | None) -> Sequence[SlotHost]:
    try:
        written = plain(interpolate(file, names)) or ""
        path = os.path.join(folder, os.path.expanduser(written))
        text = read_text(Path(path), longest=MAX_HOSTFILE_BYTES)
    except UnknownName as error:
        message = f"unknown name in `hostfile`: {error}"
        raise Refused([Finding(FindingCode.UNKNOWN_NAME, message, place)]) from error
    except (OSError, UnicodeDecodeError) as error:
        message, hint = f"cannot read the host file: {error}", "create it, or correct `hostfile`"
        raise Refused([Finding(FindingCode.UNREADABLE_FILE, message, place, hint)]) from error
    hosts, faults = read_hostfile(text, path)
    if errors(faults):
        raise Refused(faults)
    return hosts
