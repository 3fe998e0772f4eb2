"""Properties of the machine that plans a job: the user, and the hardware for local runs."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from hpc_launch.base.files import read_text
from hpc_launch.job.environment import Environment
from hpc_launch.job.hostlist import expand
from hpc_launch.job.shell_text import UnknownName, interpolate, plain
from hpc_launch.sites.container_settings import Image
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.resolved import Logins, Submitter

MAX_BAD_NODES_BYTES = 64 << 10
"""Size of the largest `bad_nodes.file`."""
MAX_BAD_NODES = 500
_HOST_LIST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]-]*\Z")


def with_local_hardware(site: SiteProfile, nodes: int) -> SiteProfile:
    """The `local` profile with this machine's CPUs and GPUs divided among its `nodes`."""
    machine = os.uname().machine
    arch: Literal["x86_64", "aarch64"] | None = machine if machine in ("x86_64", "aarch64") else None  # type: ignore[assignment]
    node_classes = {
        name: replace(node, cpus=max(_cpus() // nodes, 1), gpus=_gpus() // nodes, arch=arch)
        for name, node in site.node_classes.items()
    }
    return replace(site, node_classes=node_classes)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> int:
    """Number of NVIDIA device files, or of AMD render nodes if the AMD driver is loaded."""
    nvidia = len(glob.glob("/dev/nvidia[0-9]*"))
    amd = len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0
    return nvidia or amd


def names(environment: Mapping[str, str]) -> dict[str, str]:
    """Values for `${…}` besides paths: user, home, hpc-launch's own interpreter and the shell's variables."""
    values = {f"env.{name}": value for name, value in environment.items()}
    values["home"] = os.path.expanduser("~")
    values["user"] = environment.get("USER") or environment.get("LOGNAME") or _account_name()
    values["launcher.python"] = sys.executable
    values["runs"] = environment.get("HPC_LAUNCH_HOME") or os.path.join(values["home"], "hpc-launch", "runs")
    return values


def _account_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


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
    metadata = glob.glob(
        os.path.join(os.path.expanduser(prefix), "lib", "python3*", "site-packages", "torch-*.dist-info")
    )
    version = re.search(r"torch-(\d+)\.(\d+)[^/]*\Z", metadata[0]) if prefix and metadata else None
    return (int(version[1]), int(version[2])) if version else None
