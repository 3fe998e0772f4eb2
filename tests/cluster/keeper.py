"""Process 1 of a pid namespace: it starts daemons, and buries whoever dies below it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path


class Keeper:
    """The daemons of one host, by name, with their output in a log folder."""

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
