"""What a cluster is made of: its size, its users, and where its files lie."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

LOGIN = "login"
"""Host name of the login node; the controller and the database run there too."""

LOGIN_ADDRESS = "10.77.0.254"
"""Address of the login node. Every cluster has its own network, so all may use the same ones."""

UNSHARE = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
"""New namespaces for one host; killing `unshare` kills process 1 of the new pid namespace."""


def python_module(name: str) -> list[str]:
    """The command that runs one of our modules, from the root of the checkout.

    Without the site packages (-S) and the environment's wishes (-E): it starts in 15 ms.
    """
    return [sys.executable, "-S", "-E", "-m", name]


class ClusterError(RuntimeError):
    """The cluster could have run here but did not: a fault to be looked at, never a skip."""


class ClusterUnavailable(Exception):
    """This machine cannot run a cluster; the message says what is missing."""


@dataclass(frozen=True)
class User:
    """An ordinary user who exists only inside the cluster."""

    name: str
    uid: int


USERS = (User("alice", 4242), User("bob", 4243))
"""The first one runs the tests' commands; the second is 'somebody else' on the same cluster."""

ACCOUNT = "proj"
"""The accounting account that all users belong to, where there is accounting."""


@dataclass(frozen=True)
class Settings:
    """The size and the habits of one cluster, as `Cluster.start` explains them; `root` is that of its system."""

    nodes: int
    gpus_per_node: int
    accounting: bool
    slurm_conf: tuple[str, ...]
    needs: tuple[str, ...]
    system: str | None
    root: str | None
    cgroups: bool
    topology: str

    @property
    def node_names(self) -> list[str]:
        """The names of the compute nodes, in order."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def address(self, node: str) -> str:
        """The address of a compute node."""
        return f"10.77.0.{int(node[1:])}"


class Layout:
    """Where each file of a cluster lies below its one folder."""

    def __init__(self, root: Path) -> None:
        """Derive the places from the root; `folders` have to exist before a daemon starts."""
        self.root = root
        self.config = root / "slurm"
        self.logs = root / "log"
        self.run = root / "run"
        self.spool = root / "spool"
        self.database = root / "db"
        self.devices = root / "dev"
        self.homes = root / "home"
        self.scratch = root / "scratch"
        self.faults = root / "faults"
        # A storage of 8 MB that all nodes share, which can be full or read-only.
        self.small = root / "small"
        self.folders = [path for path in vars(self).values() if path != root]
        # What Slurm has sent, a line each.
        self.mails = self.faults / "mails"
        # A /dev/fuse that every user may open; there only for clusters in another root.
        self.fuse = self.devices / "fuse"
        # The socket on which the manager takes orders (root only).
        self.control = self.run / "control.sock"
        self.settings_file = root / "settings.json"
        # What another process needs in order to attach; there once the namespaces are up.
        self.descriptor = root / "cluster.json"

    def prolog_fault(self, node: str) -> Path:
        """The file for which Slurm's Prolog fails on a node."""
        return self.faults / f"prolog_fail_{node}"

    def home(self, user: User) -> Path:
        """The home folder of a user, on the storage that all nodes share."""
        return self.homes / user.name


def write_settings(layout: Layout, settings: Settings) -> None:
    """Leave the settings where the processes inside find them."""
    layout.settings_file.write_text(json.dumps(asdict(settings)))


def read_settings(layout: Layout) -> Settings:
    """Read what `write_settings` left."""
    values = json.loads(layout.settings_file.read_text())
    for name in ("slurm_conf", "needs"):
        values[name] = tuple(values[name])
    return Settings(**values)
