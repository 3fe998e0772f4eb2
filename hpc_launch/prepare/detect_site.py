"""Collect what detection rules can match on this machine: variables, host names, files and Slurm's cluster name."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from hpc_launch.sites.detect_profile import Detection, Machine, detect, rule_matches
from hpc_launch.sites.profile import DetectionRule, SiteProfile

HOST_NAME_TIMEOUT_S = 2.0
"""Limit for getfqdn, which takes many seconds if the DNS resolver does not respond."""


def detect_site(project: Path | None = None) -> Detection:
    """Detect the site of this machine. Slurm is queried only if no other method finds a match."""
    return detect(this_machine(), project)


def is_elsewhere(profile: SiteProfile) -> bool:
    """Whether no `detect:` rule of the site recognizes this machine. Slurm is not queried."""
    rules = [rule for rule in profile.detect if rule.cluster is None and rule != DetectionRule()]
    return profile.scheduler.type != "local" and not any(rule_matches(rule, this_machine()) for rule in rules)


def this_machine() -> Machine:
    """The properties of this machine that detection rules can match."""
    return Machine(dict(os.environ), _host_names(), os.path.exists, _cluster, _has_slurm)


def _host_names() -> tuple[str, ...]:
    """The fully qualified and the short name of this host."""
    name = os.uname().nodename
    if "." in name:
        return (name,)
    full_names: list[str] = []

    def resolve() -> None:
        import socket

        with suppress(OSError, UnicodeError):
            full_names.append(socket.getfqdn(name))

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(HOST_NAME_TIMEOUT_S)
    return tuple(dict.fromkeys([*full_names, name]))


def _has_slurm() -> bool:
    from hpc_launch.schedulers.slurm.query_cluster import is_here

    return is_here()


def _cluster() -> str | None:
    from hpc_launch.schedulers.slurm.query_cluster import cluster_name, is_here

    return cluster_name() if is_here() else None
