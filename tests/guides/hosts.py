"""Hosts without Slurm as the authors of guides have them: what a user types on the first one, and what ranks say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.cluster.ssh import connect_nodes
from tests.ssh.ssh_user import SshUser

SAYS = """\
import json, os, sys
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NCCL_SOCKET_IFNAME PATH".split()
said = {name: os.environ.get(name, "") for name in names}
said |= {"host": os.uname().nodename, "folder": os.getcwd(), "words": sys.argv[1:]}
sys.stdout.write(f"SAID {json.dumps(said)}\\n")  # at once: others write to the same file
sys.stdout.flush()
"""
"""A training that says what it got."""

BY_HAND = {"PDSH_RCMD_TYPE": "ssh"}
"""What a guide has its user write to ~/.bashrc."""


def hosts_of(cluster: Cluster, folder: Path) -> SshUser:
    """A user whose three hosts have 2, 2 and 1 slots. Raises ClusterUnavailable without ssh and pdsh."""
    connect_nodes(cluster)
    user = SshUser(cluster, folder)
    hosts = (f"n{at}: {{slots: {slots}, address: 10.77.0.{at}, interface: eth0}}" for at, slots in SLOTS.items())
    user.profile(f"hosts: {{{', '.join(hosts)}}}")
    return user


SLOTS = {1: 2, 2: 2, 3: 1}


def on_first(user: SshUser, command: str, **env: str) -> str:
    """What a command prints that the user types on the first host, without hpc-launch around it."""
    done = user.cluster.run(["bash", "-c", command], node="n1", cwd=user.home, env={**user.env, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def said(output: str) -> dict[int, dict[str, Any]]:
    """What each rank got, by its rank."""
    lines = [json.loads(text) for text in re.findall(r"SAID (\{.*\})", output)]
    assert lines, output
    return {int(one["RANK"]): one for one in sorted(lines, key=lambda one: int(one["RANK"]))}


def compared(ranks: dict[int, dict[str, Any]], *more: str) -> list[list[Any]]:
    """What must be the same in all ways to start the ranks: `=eth0` is the name eth0, and not those that begin so."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "host", "folder", *more)
    return [[*(one[name] for name in names), one["NCCL_SOCKET_IFNAME"].lstrip("=")] for one in ranks.values()]
