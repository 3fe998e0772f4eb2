"""Which site this machine is of: what the machine and its Slurm tell, for the probes of the profiles."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from hpc_launch.sites.detect_profile import Detection, Machine, detect

HOST_TIMEOUT_S = 2.0
"""A resolver that does not answer keeps getfqdn for many seconds, and short names are known without it."""


def detect_site(project: Path | None = None) -> Detection:
    """Hold all profiles against this machine; Slurm is asked only if nothing else decides."""
    return detect(this_machine(), project)


def this_machine() -> Machine:
    """What the probes may ask."""
    return Machine(dict(os.environ), _hosts(), os.path.exists, _cluster, _has_slurm)


def _hosts() -> tuple[str, ...]:
    """This host's full name and its short one."""
    name = os.uname().nodename
    if "." in name:
        return (name,)
    found: list[str] = []

    def look() -> None:
        import socket

        with suppress(OSError, UnicodeError):
            found.append(socket.getfqdn(name))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(HOST_TIMEOUT_S)
    return tuple(dict.fromkeys([*found, name]))


def _has_slurm() -> bool:
    from hpc_launch.schedulers.slurm.query_cluster import is_here

    return is_here()


def _cluster() -> str | None:
    from hpc_launch.base.errors import Unreachable
    from hpc_launch.schedulers.slurm.query_cluster import cluster_name, is_here

    if not is_here():
        return None
    with suppress(Unreachable):
        return cluster_name()
    return None
