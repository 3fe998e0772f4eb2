"""The daemons of a host, and those of the login node, each started when what it needs is there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.cluster import config
from tests.cluster.faults import wait_until
from tests.cluster.settings import ACCOUNT, LOGIN_ADDRESS, USERS, Layout

CONTROLLER_PORT, DATABASE_PORT = 6817, 6819
"""Slurm's default ports of slurmctld and slurmdbd."""

DATABASE_SOCKET = "/run/mysqld/mysqld.sock"
"""Where the MariaDB client in slurmdbd looks; ``/run`` is the cluster's own."""

FAST_DATABASE = [
    "--user=root",
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=8M",
    "--innodb-data-file-path=ibdata1:5M:autoextend",
    # The data live as long as the process: nothing has to reach a disk.
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-lock-wait-timeout=900",
    # On by default since MariaDB 11; slurmdbd then ends at the first two writers that meet.
    "--loose-innodb-snapshot-isolation=OFF",
]


class Keeper:
    """The daemons of one host, by name, with their output in a log folder; it buries whoever dies below process 1."""

    def __init__(self, logs: Path) -> None:
        """Start with none."""
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str]) -> None:
        """Start a daemon in the foreground. One that runs already is left alone."""
        if self.alive(name):
            return
        with (self.logs / f"{name}.out").open("ab") as output:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )

    def alive(self, name: str) -> bool:
        """Whether a daemon of this name was started and still runs."""
        return name in self._running and self._running[name].poll() is None

    def send(self, daemon: str, number: int) -> None:
        """Send a signal to a daemon that runs."""
        if not self.alive(daemon):
            raise RuntimeError(f"{daemon} does not run")
        self._running[daemon].send_signal(number)

    def stop(self, daemon: str, number: int = signal.SIGTERM) -> None:
        """End a daemon and wait for its end; 10 s after a gentle signal it is killed."""
        if not self.alive(daemon):
            return
        process = self._running[daemon]
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a frozen one would not hear of it
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def bury(self) -> None:
        """Reap what has ended: our daemons, and orphans that the kernel gave to process 1."""
        for process in self._running.values():
            process.poll()  # before the others, so that its exit status reaches its own object
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    return
            except ChildProcessError:
                return


def listening(port: int) -> bool:
    """Whether something on the login node accepts connections on a port."""
    with socket.socket() as probe:
        return probe.connect_ex((LOGIN_ADDRESS, port)) == 0


def prepare_database(layout: Layout) -> subprocess.Popen[bytes]:
    """Start to fill an empty database folder; it takes about half a second."""
    command = ["mariadb-install-db", "--no-defaults", f"--datadir={layout.database}"]
    command += ["--skip-test-db", "--auth-root-authentication-method=normal", *FAST_DATABASE]
    with (layout.logs / "mariadb-install.out").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def start_munge(keeper: Keeper, layout: Layout) -> None:
    """Start the one authentication daemon; all nodes share its socket."""
    key = layout.run / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    command = ["munged", "--foreground", "--force", f"--key-file={key}"]
    command += [f"--pid-file={layout.run}/munged.pid", f"--seed-file={layout.run}/munged.seed"]
    # It may refuse a log in a folder of unusual rights; its output goes to the keeper's file.
    keeper.start("munged", [*command, "--log-file=/run/munge/munged.log"])


def start_database(keeper: Keeper, layout: Layout) -> None:
    """Start MariaDB on a prepared folder."""
    # An empty folder is a database. slurmdbd would make it itself, after a connection that fails for
    # want of it, and the client of MariaDB 11.8.9 then refuses every answer (error 5027, "=0 columns").
    (layout.database / config.DATABASE).mkdir(exist_ok=True)
    command = ["mariadbd", "--no-defaults", f"--datadir={layout.database}", *FAST_DATABASE]
    command += ["--skip-networking", f"--socket={DATABASE_SOCKET}"]
    command += [f"--pid-file={layout.run}/mariadbd.pid"]
    keeper.start("mariadbd", command)
    wait_until(Path(DATABASE_SOCKET).exists, explain=lambda: "no MariaDB", every=0.02)


def start_accounting(keeper: Keeper) -> None:
    """Start slurmdbd and wait until it answers."""
    keeper.start("slurmdbd", ["slurmdbd", "-D"])
    wait_until(lambda: listening(DATABASE_PORT), explain=lambda: "no slurmdbd", every=0.02)


def register_accounts() -> None:
    """Make the cluster, the account and the users known to the database."""
    users = ",".join(user.name for user in USERS)
    for words in (
        ["cluster", config.NAME],
        ["account", ACCOUNT, "Description=test", "Organization=test"],
        ["user", users, f"Account={ACCOUNT}"],
    ):
        subprocess.run(["sacctmgr", "-i", "add", *words], check=True, stdout=subprocess.DEVNULL)


def start_controller(keeper: Keeper) -> None:
    """Start slurmctld and wait until it takes connections."""
    keeper.start("slurmctld", ["slurmctld", "-D", "-i"])
    wait_until(lambda: listening(CONTROLLER_PORT) or not keeper.alive("slurmctld"), every=0.02)
    if not keeper.alive("slurmctld"):
        raise RuntimeError("slurmctld ended at once, see its log")
