"""What a cluster is made of: its size, its users, and where its files lie."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
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
    """The size and the habits of one cluster.

    Attributes:
        nodes: How many compute nodes; they are called ``n1`` ... ``nN`` (at most 200).
        gpus_per_node: GPUs that Slurm hands out a node (fake devices); 0 for none.
        accounting: With slurmdbd and its database; without it ``sacct`` fails, as on many sites.
        min_job_age: Seconds until the controller forgets an ended job (Slurm's default is 300).
        cpus_per_node: CPUs a node claims; more than the machine has is fine.
        memory_mb: Memory a node claims, in MiB.
        slurm_conf: Further lines for ``slurm.conf``; each replaces our line of the same key.
        needs: Paths besides the Python environment that the user must be able to read.
        path: Folders put first into ``PATH`` of every user.
        system: Another Debian release than this machine's, by its name in `roots.SYSTEMS`.
        root: The root file system of that release.
        cgroups: Slurm tracks and limits by the machine's own cgroups (v1), as sites do; one node only.
        small_mb: Size of `Layout.small`, a storage of its own that all nodes share; 0 for none.
    """

    nodes: int = 4
    gpus_per_node: int = 4
    accounting: bool = True
    min_job_age: int = 300
    cpus_per_node: int = 8
    memory_mb: int = 65536
    slurm_conf: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    system: str | None = None
    root: str | None = None
    cgroups: bool = False
    small_mb: int = 0

    @property
    def node_names(self) -> list[str]:
        """The names of the compute nodes, in order."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def address(self, node: str) -> str:
        """The address of a compute node."""
        return f"10.77.0.{int(node[1:])}"


@dataclass(frozen=True)
class Layout:
    """Where each file of a cluster lies below its one folder."""

    root: Path
    config: Path = field(init=False)
    logs: Path = field(init=False)
    run: Path = field(init=False)
    spool: Path = field(init=False)
    database: Path = field(init=False)
    devices: Path = field(init=False)
    homes: Path = field(init=False)
    scratch: Path = field(init=False)
    faults: Path = field(init=False)
    small: Path = field(init=False)

    def __post_init__(self) -> None:
        """Derive the folders from the root."""
        places = {
            "config": "slurm",
            "logs": "log",
            "run": "run",
            "spool": "spool",
            "database": "db",
            "devices": "dev",
            "homes": "home",
            "scratch": "scratch",
            "faults": "faults",
            "small": "small",
        }
        for name, place in places.items():
            object.__setattr__(self, name, self.root / place)

    @property
    def folders(self) -> list[Path]:
        """Every folder that has to exist before a daemon starts."""
        return [
            self.config,
            self.logs,
            self.run,
            self.spool,
            self.database,
            self.devices,
            self.homes,
            self.scratch,
            self.faults,
            self.small,
        ]

    @property
    def mails(self) -> Path:
        """What Slurm has sent, a line each."""
        return self.faults / "mails"

    @property
    def fuse(self) -> Path:
        """A ``/dev/fuse`` that every user may open; there only for clusters in another root."""
        return self.devices / "fuse"

    @property
    def control(self) -> Path:
        """The socket on which the manager takes orders (root only)."""
        return self.run / "control.sock"

    @property
    def settings_file(self) -> Path:
        """The settings, for the processes inside."""
        return self.root / "settings.json"

    @property
    def descriptor(self) -> Path:
        """What another process needs in order to attach; there once the namespaces are up."""
        return self.root / "cluster.json"

    def home(self, user: User) -> Path:
        """The home folder of a user, on the storage that all nodes share."""
        return self.homes / user.name


def write_settings(layout: Layout, settings: Settings) -> None:
    """Leave the settings where the processes inside find them."""
    layout.settings_file.write_text(json.dumps(asdict(settings)))


def read_settings(layout: Layout) -> Settings:
    """Read what `write_settings` left."""
    values = json.loads(layout.settings_file.read_text())
    for name in ("slurm_conf", "needs", "path"):
        values[name] = tuple(values[name])
    return Settings(**values)
