"""What can only be asked of the machine that plans a job: who the user is, and what this machine has for local runs."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from msgspec.structs import replace

from hpc_launch.sites.container_settings import Image
from hpc_launch.sites.detection_rules import Unusable
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.resolved import Logins, Submitter
from hpc_launch.spec.environment import Environment
from hpc_launch.spec.shell_text import UnknownName, interpolate, plain


def counted(site: SiteProfile, nodes: int) -> SiteProfile:
    """The `local` profile with this machine's CPUs and GPUs shared out among its `nodes`."""
    machine = os.uname().machine
    arch: Literal["x86_64", "aarch64"] | None = machine if machine in ("x86_64", "aarch64") else None  # type: ignore[assignment]
    share = {
        name: replace(node, cpus=max(_cpus() // nodes, 1), gpus=_gpus() // nodes, arch=arch)
        for name, node in site.node_classes.items()
    }
    return replace(site, node_classes=share)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> int:
    """NVIDIA's device files; AMD's render nodes where its driver is there."""
    nvidia = len(glob.glob("/dev/nvidia[0-9]*"))
    amd = len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0
    return nvidia or amd


def names(environment: Mapping[str, str]) -> dict[str, str]:
    """What `${…}` may name besides paths: user, home, the interpreter that runs hpc-launch, the shell's variables."""
    known = {f"env.{name}": value for name, value in environment.items()}
    known["home"] = os.path.expanduser("~")
    known["user"] = environment.get("USER") or environment.get("LOGNAME") or _account_name()
    known["launcher.python"] = sys.executable
    known["runs"] = environment.get("HPC_LAUNCH_HOME") or os.path.join(known["home"], "hpc-launch", "runs")
    return known


def _account_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def logins(environment: Mapping[str, str]) -> Logins | None:
    """The login file that wandb and others read on this machine, and whose hosts it names; None without one."""
    import netrc

    path = environment.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        hosts = netrc.netrc(path).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return None
    return Logins(path, frozenset(hosts))


def submitter() -> Submitter:
    """The folder and the host that a job is planned in."""
    try:
        return Submitter(os.getcwd(), os.uname().nodename)
    except OSError:  # the folder was deleted
        return Submitter("", os.uname().nodename)


def bad_nodes(asked: Unusable, names: Mapping[str, str]) -> tuple[str, ...]:
    """Host lists to keep off: the profile's own, and those of its file if it can be read; `#` begins a comment."""
    lines: list[str] = []
    if asked.file is not None:
        with suppress(OSError, UnicodeDecodeError, UnknownName):
            path = plain(interpolate(asked.file, names))
            with open(path or "", encoding="utf-8") as stream:
                lines = [line.partition("#")[0].strip() for line in stream]
    return tuple(dict.fromkeys([*asked.nodes, *filter(None, lines)]))


def torch_version(
    environment: Environment, names: Mapping[str, str], *, in_image: bool, of_image: Image | None
) -> tuple[int, int] | None:
    """PyTorch's version: as the job or the site's image declares it, else by the metadata beside the job's interpreter.

    None where that says nothing, or where the job runs in an image that says nothing.
    """
    declared = re.match(r"(\d+)\.(\d+)", environment.torch or (of_image and of_image.torch) or "")
    if declared:
        return int(declared[1]), int(declared[2])
    if in_image:
        return None
    python = (environment.python or "").replace("${launcher.python}", names["launcher.python"])
    prefix = environment.venv or os.path.dirname(os.path.dirname(python))
    found = glob.glob(os.path.join(os.path.expanduser(prefix), "lib", "python3*", "site-packages", "torch-*.dist-info"))
    version = re.search(r"torch-(\d+)\.(\d+)[^/]*\Z", found[0]) if prefix and found else None
    return (int(version[1]), int(version[2])) if version else None
