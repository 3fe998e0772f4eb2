"""ssh between the nodes of a cluster, for its ordinary user: an sshd on each node, with keys made for this cluster.

Started only where a test asks for it. All its files lie in the cluster's own folder and in the home that its user has
there: the machine's own keys and settings are neither read nor changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.commands import Commands
from tests.cluster.config import SYSTEM_PATH
from tests.cluster.settings import ClusterError, ClusterUnavailable
from tests.cluster.syscalls import locked

PROGRAMS = {"sshd": "openssh-server", "ssh-keygen": "openssh-client", "pdsh": "pdsh"}
"""Program to the Debian package that has it."""


def connect_nodes(cluster: Commands) -> None:
    """Let the user reach each node from each other one by ssh and pdsh. A second call does nothing.

    Raises:
        ClusterUnavailable: A program is missing; the message names its package.
    """
    missing = [package for name, package in PROGRAMS.items() if shutil.which(name, path=SYSTEM_PATH) is None]
    if missing:
        raise ClusterUnavailable(f"ssh between nodes needs the Debian packages {' '.join(missing)}")
    folder = cluster.layout.root / "ssh"
    folder.mkdir(mode=0o755, exist_ok=True)
    with locked(folder / "lock"):  # several processes of a test run share a cluster
        if not (folder / "ready").exists():
            _start(cluster, folder)
            (folder / "ready").touch()


def _start(cluster: Commands, folder: Path) -> None:
    host_key, user_folder = folder / "host_key", cluster.home / ".ssh"
    _make_key(host_key)
    user_folder.mkdir(mode=0o700)
    key = user_folder / "id_ed25519"
    _make_key(key)
    shutil.copy(key.with_suffix(".pub"), user_folder / "authorized_keys")
    host = " ".join(host_key.with_suffix(".pub").read_text().split()[:2])
    hosts = "".join(f"{node},{cluster.settings.address(node)} {host}\n" for node in cluster.nodes)
    (user_folder / "known_hosts").write_text(hosts)
    for path in (user_folder, *user_folder.iterdir()):
        os.chown(path, cluster.uid, cluster.uid)
    config = folder / "sshd_config"
    config.write_text(
        f"HostKey {host_key}\nPidFile none\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "StrictModes no\nUseDNS no\nPermitUserEnvironment no\nMaxStartups 100\nLogLevel VERBOSE\n"
    )
    for node in cluster.nodes:
        done = cluster.node_exec(node, ["/usr/sbin/sshd", "-f", str(config), "-E", str(folder / f"{node}.log")])
        if done.returncode != 0:
            raise ClusterError(f"sshd did not start on {node}: {done.stderr}")
        cluster.run(["ssh", "-o", "BatchMode=yes", node, "true"], check=True)


def _make_key(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test cluster", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, env={"PATH": SYSTEM_PATH})
