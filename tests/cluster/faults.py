"""Breaking a cluster, and putting it right again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

from tests.cluster.commands import Commands
from tests.cluster.settings import USERS

CONTROLLER, DATABASE = "slurmctld", "slurmdbd"

PATIENCE_S = 300.0
"""How long tests wait for what takes seconds on an idle machine."""


class Faults(Commands):
    """A running cluster, as something that can be disturbed.

    Each fault is real: a killed namespace, a cable that is down, a stopped daemon. How soon
    Slurm notices is Slurm's affair: a dead node about 30 s (``SlurmdTimeout=20``).
    """

    # -- nodes --------------------------------------------------------------------------------

    def kill_node(self, node: str) -> None:
        """Cut the power of a node: all its processes die, nobody is told."""
        self.order("kill_node", node=node)

    def revive_node(self, node: str) -> None:
        """Switch a dead node on again; it registers with the controller within seconds."""
        self.order("revive_node", node=node)

    def cut(self, node: str) -> None:
        """Cut the network cable of a node; it goes on running."""
        self.order("cut", node=node)

    def mend(self, node: str) -> None:
        """Undo `cut`."""
        self.order("mend", node=node)

    def kill_slurmd(self, node: str) -> None:
        """Kill the slurmd of a node with SIGKILL: its jobs run on, and nobody speaks for it."""
        self.order("kill_slurmd", node=node)

    def remount_small(self, options: str) -> None:
        """Change the storage `Layout.small`: `ro`, `rw`, `size=1m`."""
        self.order("remount_small", options=options)

    def fail_prolog(self, node: str) -> None:
        """Let no job start on a node: Slurm drains it and holds the job."""
        self.layout.prolog_fault(node).touch()

    # -- daemons ------------------------------------------------------------------------------

    def freeze_controller(self) -> None:
        """Stop slurmctld as if its host were stuck: it takes connections, and answers nothing."""
        self.order("signal_daemon", daemon=CONTROLLER, number=int(signal.SIGSTOP))

    def thaw_controller(self) -> None:
        """Undo `freeze_controller`; it then works off what has piled up."""
        self.order("signal_daemon", daemon=CONTROLLER, number=int(signal.SIGCONT))

    def stop_controller(self, *, kill: bool = False) -> None:
        """End slurmctld; with `kill` at once, and it forgets what the last seconds brought."""
        self._stop(CONTROLLER, kill)

    def start_controller(self) -> None:
        """Start slurmctld again, with the state that it saved."""
        self.order("start_daemon", daemon=CONTROLLER)

    def stop_accounting(self, *, kill: bool = False) -> None:
        """End slurmdbd: ``sacct`` fails, while the controller keeps its records for later."""
        self._stop(DATABASE, kill)

    def start_accounting(self) -> None:
        """Start slurmdbd again; the controller delivers within seconds what it kept."""
        self.order("start_daemon", daemon=DATABASE)

    def _stop(self, daemon: str, kill: bool) -> None:
        number = signal.SIGKILL if kill else signal.SIGTERM
        self.order("stop_daemon", daemon=daemon, number=int(number))

    # -- waiting ------------------------------------------------------------------------------

    def node_states(self) -> dict[str, str]:
        """Slurm's word for the state of each node ("idle", "down*"); empty without an answer."""
        answer = self._ask(["sinfo", "-h", "-N", "-o", "%N %T"]) or ""
        return dict(line.split() for line in answer.splitlines())

    def jobs(self) -> list[str] | None:
        """A line a job that is not over: number, name, state, reason; None without an answer."""
        answer = self._ask(["squeue", "-h", "-a", "-o", "%i %j %T %R"])
        return None if answer is None else answer.splitlines()

    def _ask(self, command: list[str]) -> str | None:
        try:
            return self.run(command, user="root", timeout=30, check=True).stdout
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None

    def wait_until_idle(self) -> None:
        """Wait until every node is idle; TimeoutError tells the states."""

        def idle() -> bool:
            states = self.node_states()
            return len(states) == self.settings.nodes and set(states.values()) == {"idle"}

        wait_until(idle, explain=lambda: f"nodes: {self.node_states()}")

    def restore(self) -> None:
        """Undo every fault, cancel every job, and wait until the cluster is as new."""
        # The database first: a controller that never reached it before does not stay up without it.
        for daemon in [DATABASE, CONTROLLER] if self.settings.accounting else [CONTROLLER]:
            self.order("start_daemon", daemon=daemon)
            self.order("signal_daemon", daemon=daemon, number=int(signal.SIGCONT))
        living = self.order("processes")["nodes"]
        for node in self.settings.node_names:
            self.layout.prolog_fault(node).unlink(missing_ok=True)
            self.mend(node) if node in living else self.revive_node(node)

        def calm() -> bool:
            states = self.node_states()
            for node, state in states.items():
                if state not in ("idle", "completing"):
                    # Slurm refuses this for a node that is in service; that is then as good.
                    self.run(["scontrol", "update", f"nodename={node}", "state=resume"], user="root")
            return bool(states) and set(states.values()) == {"idle"}

        wait_until(self._cancel_all, explain=lambda: "scancel still fails")
        wait_until(calm, explain=lambda: f"nodes: {self.node_states()}")
        wait_until(lambda: self.jobs() == [], explain=lambda: f"jobs: {self.jobs()}")

    def _cancel_all(self) -> bool:
        # A command a user: this scancel takes only one name.
        done = [self.run(["scancel", "-u", one.name], user="root") for one in USERS]
        return all(one.returncode == 0 for one in done)


def wait_until(
    ready: Callable[[], bool],
    timeout: float = PATIENCE_S,
    explain: Callable[[], str] = lambda: "not ready",
    every: float = 0.1,
) -> None:
    """Poll until something holds; TimeoutError with an explanation after `timeout` seconds.

    What takes long to find out is asked less often, or the asking would slow down what it waits for.
    """
    end = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        if ready():
            return
        now = time.monotonic()
        if now > end:
            raise TimeoutError(f"after {timeout:g} s: {explain()}")
        time.sleep(max(every, min(3 * (now - asked), 2.0)))
