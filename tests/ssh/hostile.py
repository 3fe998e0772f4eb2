"""Hosts that behave badly at login: each is a further sshd on a node, with another shell, home and start-up files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.config import SYSTEM_PATH
from tests.cluster.faults import wait_until
from tests.ssh.ssh_user import SshUser

ESCAPES = "\\033[2J\\033]0;owned\\007\\033[8m"
FLOOD = f"yes '{ESCAPES} you are welcome' | head -c 4000000\nyes flood | head -c 4000000 >&2\n"
STARTS = {
    "flood": ("bash", ".bashrc", FLOOD),
    "echo": ("bash", ".bashrc", f"echo Welcome; printf '{ESCAPES}'; cd /; set -u; alias exec=false\n"),
    "dash": ("dash", ".profile", ""),
    "csh": ("tcsh", ".cshrc", f"echo Welcome; printf '{ESCAPES}'; cd /\n"),
    "fish": ("fish", ".config/fish/config.fish", f"echo Welcome; printf '{ESCAPES}'; cd /\n"),
    "exit": ("bash", ".bashrc", "exit 0\n"),
    "exec": ("bash", ".bashrc", f"printf '{ESCAPES}no service today' >&2; exec cat\n"),
}
"""By name: the login shell, and its start-up file."""
INSIDE = (
    "mount --bind {passwd} /etc/passwd && exec /usr/sbin/sshd -f {config} -p {port} -o Banner={banner} -o PidFile={pid}"
)


@contextlib.contextmanager
def hostile_hosts(user: SshUser, *names: str) -> Iterator[list[str]]:
    """Start hosts of these names, each on a node of its own; gives their names for ssh."""
    cluster, hosts, files = user.cluster, [], []
    if missing := {STARTS[name][0] for name in names if shutil.which(STARTS[name][0], path=SYSTEM_PATH) is None}:
        pytest.skip(f"needs the Debian packages {' '.join(sorted(missing))}")
    for number, name in enumerate(names):
        shell, start_file, text = STARTS[name]
        node = f"n{4 - number}"
        home, port = user.home / f"home-{name}", 20000 + (os.getpid() * 8 + number) % 20000
        user.job(text, f"home-{name}/{start_file}")
        cluster.run(["ln", "-s", str(cluster.home / ".ssh"), str(home / ".ssh")], check=True)
        entry = f"{cluster.user}:x:{cluster.uid}:{cluster.uid}::{home}:{shutil.which(shell, path=SYSTEM_PATH)}"
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith(cluster.user)]
        passwd = user.job("\n".join([entry, *others, ""]), f"passwd-{name}")
        banner = user.job("\033[2J a banner \033]0;owned\007\n", "banner")
        pid, config = home / "sshd.pid", cluster.layout.root / "ssh" / "sshd_config"
        words = INSIDE.format(passwd=passwd, config=config, port=port, banner=banner, pid=pid)
        assert cluster.node_exec(node, ["unshare", "--mount", "bash", "-c", words]).returncode == 0
        wait_until(pid.exists)
        hosts.append(f"{name}-{port}")
        files.append((node, pid))
        with (cluster.home / ".ssh" / "config").open("a") as stream:
            stream.write(f"Host {hosts[-1]}\n  HostName {node}\n  Port {port}\n  HostKeyAlias {node}\n")
        (cluster.home / ".ssh" / "config").chmod(0o644)
    try:
        yield hosts
    finally:
        for node, file in files:
            cluster.node_exec(node, ["kill", f"-{signal.SIGTERM:d}", file.read_text().strip()])
