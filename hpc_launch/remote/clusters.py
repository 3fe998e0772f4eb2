"""Clusters by name: what `clusters add` has set up, and commands on their login nodes over one ssh connection.

The connection is OpenSSH's own (ControlMaster, ControlPersist; ssh_config(5)), with the user's ~/.ssh/config. A
password or a second factor is asked for once, while the connection lasts. Nothing listens on the cluster.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpc_launch.agent.fan_out import SSH_FAILED
from hpc_launch.base.errors import Unreachable, UsageError
from hpc_launch.base.files import make_own_folder, make_private, state_folder
from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.job.shell_text import quote

PERSIST = "12h"
"""How long the connection stays open after its last use."""
ASK_S = 60.0
LONGEST_FOLDER = 36
"""Characters of the folder of a socket, whose path may have 108 (unix(7)); ssh adds 57 besides the name."""


class Cluster(Struct, frozen=True, kw_only=True):
    """clusters/NAME.json: where hpc-launch is installed on a cluster. Paths are those of the cluster."""

    name: str
    host: str
    """The login node, as ssh knows it."""
    version: str
    """Of hpc-launch there: the release and the digest of its files."""
    environment: str
    """The virtual environment."""
    code: str
    """The folder of the copies of code."""
    site: str | None = None
    """The site profile of a submission that names none."""
    added: float

    def ssh(self, *, ask: bool = True, terminal: bool = False) -> list[str]:
        """The words of ssh up to the command. `ask`: it may ask for a password or a second factor."""
        return [*connection(ask=ask), *(["-t"] if terminal else ["-T"]), "--", self.host]

    def command(self, words: Sequence[str], folder: str = "", program: str = "hpc-launch") -> str:
        """The command that runs hpc-launch there, or another program of its environment, in a folder."""
        start = f"cd {quote(folder)} && " if folder else ""
        return in_login_shell(f"{start}exec {quote(self.environment)}/bin/{program} {' '.join(map(quote, words))}")


class ConnectionLost(Unreachable):
    """A connection that stood has ended."""


def connection(*, ask: bool) -> list[str]:
    """ssh with a connection that later commands share."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) if runtime else Path.home() / ".ssh"
    if len(str(folder)) > LONGEST_FOLDER:
        folder = Path(tempfile.gettempdir(), f"hpc-launch-{os.getuid()}")
    make_own_folder(folder)
    shared = [f"-oControlPath={folder}/hpc-launch-%C", "-oControlMaster=auto", f"-oControlPersist={PERSIST}"]
    alive = ["-oConnectTimeout=20", "-oServerAliveInterval=10", "-oServerAliveCountMax=3"]
    return ["ssh", *shared, *alive, *([] if ask else ["-oBatchMode=yes"])]


def in_login_shell(line: str) -> str:
    """A command for any shell there: bash after its login files, which may set up Slurm and print to stderr only."""
    return f"exec sh -c {quote('exec 3>&1 >&2; exec bash -lc ' + quote(f'exec >&3 3>&-; {line}'))}"


def ask_host(host: str, line: str, *, timeout_s: float = ASK_S) -> str:
    """What a line of bash prints on a login node. Raises Unreachable, and UsageError with what it said if it fails."""
    command = [*connection(ask=True), "-T", "--", host, in_login_shell(line)]
    try:
        done = subprocess.run(command, input=b"", capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{host} does not answer over ssh: {error}") from error
    if done.returncode == SSH_FAILED:
        from hpc_launch.schedulers.ssh.ssh_hosts import fault_of

        code, reason, hint = fault_of(host, done.stderr)
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        # What hinders a connection from the beginning is a fault that is known, or said by ssh itself.
        kind = Unreachable if reason or said.startswith("ssh: ") else ConnectionLost
        raise kind(f"{code} cannot reach {host} over ssh: {reason or said or 'no answer'}", hint)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise UsageError(f"{host}: {said or f'exit code {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")


def _folder() -> Path:
    return state_folder() / "clusters"


def names() -> list[str]:
    """The clusters that are set up."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def find(name: str) -> Cluster:
    """The cluster of this name. Raises UsageError."""
    cluster = read_record(_folder() / f"{name}.json", Cluster) if name and "/" not in name else None
    if cluster is None:
        known = ", ".join(names())
        hint = f"hpc-launch clusters add {name} sets it up" + (f"; set up are {known}" if known else "")
        raise UsageError(f"no cluster is called {name!r}", hint)
    return cluster


def keep(cluster: Cluster) -> None:
    """Store it. Raises OSError."""
    make_private(_folder())
    write_record(_folder() / f"{cluster.name}.json", cluster)


class KnownRuns(Struct, frozen=True):
    """NAME.runs of a cluster: its last answer to `list --json`."""

    as_of: float
    runs: tuple[dict[str, object], ...] = ()


def known_runs(name: str) -> KnownRuns:
    """What a cluster answered last."""
    return read_record(_folder() / f"{name}.runs", KnownRuns) or KnownRuns(0.0)


def keep_runs(name: str, answer: KnownRuns) -> None:
    """Store an answer. Raises OSError."""
    write_record(_folder() / f"{name}.runs", answer, sync=False)
