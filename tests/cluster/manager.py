"""Process 1 of a cluster: it sets the namespaces up, keeps the daemons, and takes orders.

Run by the supervisor as ``python -m tests.cluster.manager FOLDER`` in new namespaces. An order
is one line of JSON on the control socket, its answer another; one at a time, so that no two
orders meet.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.cluster import mounts, network, services
from tests.cluster.faults import wait_until
from tests.cluster.settings import LOGIN, UNSHARE, Layout, Settings, python_module, read_settings
from tests.cluster.syscalls import children, outlive


class Manager:
    """The login node with its daemons, and the power switches of the compute nodes."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        """Prepare; nothing is started yet."""
        self.layout = layout
        self.settings = settings
        self.keeper = services.Keeper(layout.logs)
        self.nodes: dict[str, int] = {}
        # Orders that others carry out.
        self.cut, self.mend = network.cut, network.mend
        self.signal_daemon, self.stop_daemon = self.keeper.send, self.keeper.stop

    def start(self) -> dict[str, Any]:
        """Start all daemons, side by side where they do not need each other."""
        socket.sethostname(LOGIN)
        mounts.cluster_view(self.layout, self.settings)
        if self.settings.root and (fault := mounts.python_fault()):
            return {"missing": f"this Python does not run in {self.settings.system}: {fault}"}
        network.make_switch()
        services.start_munge(self.keeper, self.layout)
        database = services.prepare_database(self.layout) if self.settings.accounting else None
        self._power_on(self.settings.node_names)
        wait_until(Path("/run/munge/munge.socket.2").exists, explain=lambda: "no munged", every=0.02)
        if database is not None:
            if database.wait(timeout=180) != 0:
                raise RuntimeError("mariadb-install-db failed, see mariadb-install.out")
            services.start_database(self.keeper, self.layout)
            services.start_accounting(self.keeper)
            services.register_accounts()
        services.start_controller(self.keeper)
        return {}

    def _power_on(self, names: list[str]) -> None:
        """Start nodes: all are set up at the same time, then each gets its cable."""
        holders = {}
        for name in names:
            command = [*UNSHARE, *python_module("tests.cluster.node")]
            with (self.layout.logs / f"{name}.out").open("ab") as output:
                holders[name] = subprocess.Popen(
                    [*command, str(self.layout.root), name],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        for name, holder in holders.items():
            self.nodes[name] = self._first_process(holder)
            network.lay_cable(name, self.nodes[name])
            assert holder.stdin is not None
            with holder.stdin as told:
                told.write(b"cable\n")

    @staticmethod
    def _first_process(holder: subprocess.Popen[bytes]) -> int:
        """Wait for the process 1 that `unshare` starts, and give its id as seen from here."""
        wait_until(lambda: bool(children(holder.pid)) or holder.poll() is not None, every=0.02)
        return children(holder.pid)[0]

    def kill_node(self, node: str) -> None:
        """Cut the power of a node: its cable first, as a dead host says no goodbye."""
        process = self.nodes.pop(node)
        network.cut(node)
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: self._gone(process), explain=lambda: f"{node} lives on", every=0.02)
        network.remove(node)

    def _gone(self, process: int) -> bool:
        self.keeper.bury()
        return not Path(f"/proc/{process}").exists()

    def revive_node(self, node: str) -> None:
        """Switch a dead node on again."""
        if node in self.nodes:
            raise RuntimeError(f"{node} is alive")
        self._power_on([node])

    def remount_small(self, options: str) -> None:
        """Change the storage `small` for all nodes, which share it."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.layout.small)], check=True)

    def kill_slurmd(self, node: str) -> None:
        """Kill the daemon of a node; its steps, and all else there, live on."""
        for process in children(self.nodes[node]):
            if Path(f"/proc/{process}/comm").read_text().strip() == "slurmd":
                os.kill(process, signal.SIGKILL)
                return
        raise RuntimeError(f"no slurmd on {node}")

    def start_daemon(self, daemon: str) -> None:
        """Start a daemon again that was stopped, and wait until it answers."""
        start = {"slurmctld": services.start_controller, "slurmdbd": services.start_accounting}
        start[daemon](self.keeper)

    def processes(self) -> dict[str, Any]:
        """The process 1 of each living node, as numbered inside the cluster."""
        return {"nodes": self.nodes}

    def serve(self, server: socket.socket) -> None:
        """Take orders for ever, and bury the dead in between."""
        server.settimeout(0.2)
        while True:
            self.keeper.bury()
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            connection.settimeout(10)
            with connection, connection.makefile("rw") as stream:
                try:
                    answer = self._obey(json.loads(stream.readline()))
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()
                except OSError:
                    traceback.print_exc()  # the caller is gone; the cluster goes on

    def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self, order.pop("order"))(**order) or {}
            return answer
        except Exception as error:  # the answer carries it to the caller
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Be process 1 until killed."""
    layout = Layout(Path(sys.argv[1]))
    # The socket is there first, and listens: the caller may connect from the start, and waits in the queue.
    server, draft = socket.socket(socket.AF_UNIX), layout.control.with_suffix(".draft")
    os.umask(0o077)
    server.bind(str(draft))
    server.listen(16)
    draft.rename(layout.control)
    os.umask(0o022)
    outlive(signal.SIGTERM)
    Manager(layout, read_settings(layout)).serve(server)


if __name__ == "__main__":
    main()
