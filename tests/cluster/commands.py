"""Running commands inside a cluster: as a user, on the login node or on a compute node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster import config, requirements
from tests.cluster.covers import outermost
from tests.cluster.settings import USERS, ClusterError, Layout, python_module, read_settings
from tests.cluster.syscalls import descendants, start_time


class Commands:
    """A running cluster, as a place in which commands run."""

    def __init__(self, descriptor: Path) -> None:
        """Hold on to a running cluster by its descriptor."""
        values = json.loads(descriptor.read_text())
        self.descriptor = descriptor
        self.layout = Layout(Path(values["folder"]))
        self.settings = read_settings(self.layout)
        self.manager: int = values["manager"]
        self._manager_started: int = values["manager_started"]

    @property
    def alive(self) -> bool:
        """Whether the cluster's namespaces still stand."""
        return start_time(self.manager) == self._manager_started

    @property
    def user(self) -> str:
        """The name of the ordinary user."""
        return USERS[0].name

    @property
    def uid(self) -> int:
        """The number of the ordinary user, and of their group."""
        return USERS[0].uid

    @property
    def home(self) -> Path:
        """The ordinary user's home, on shared storage, with the same path in- and outside."""
        return self.layout.home(USERS[0])

    @property
    def scratch(self) -> Path:
        """A folder on shared storage in which every user may write."""
        return self.layout.scratch

    def user_folder(self, prefix: str = "") -> Path:
        """Make a fresh folder in the ordinary user's home, owned by that user."""
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.home))
        folder.chmod(0o755)
        os.chown(folder, self.uid, self.uid)
        return folder

    def write(self, path: Path, text: str, mode: int = 0o644) -> Path:
        """Write a file as if the ordinary user had; gives the path back."""
        path.write_text(text)
        path.chmod(mode)
        os.chown(path, self.uid, self.uid)
        return path

    @property
    def python_folders(self) -> list[str]:
        """The folders and files of this Python and this checkout, to be bound into an image."""
        return [str(path) for path in outermost(Path(need) for need in self.settings.needs)]

    @property
    def nodes(self) -> list[str]:
        """The names of the compute nodes."""
        return self.settings.node_names

    def environment(self, user: str | None = None) -> dict[str, str]:
        """What a login shell gives a user; nothing is inherited from the test process."""
        name = user or self.user
        homes = {one.name: str(self.layout.home(one)) for one in USERS}
        return {
            "HOME": homes.get(name, "/root"),
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "PATH": config.USER_PATH,
        }

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        node: str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on the login node (or `node`) and do not wait for it.

        Signals sent to the process reach the command, and its return code is the command's.
        SIGKILL kills the command, not what it started; see `freeze` for SIGSTOP.
        """
        words = [*map(str, self.place(user, node)), str(cwd or ""), *map(str, command)]
        return subprocess.Popen(
            [*python_module("tests.cluster.enter"), *words],
            cwd=requirements.REPOSITORY,
            env={**self.environment(user), **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 150,
        user: str | None = None,
        node: str | None = None,
        input: str | None = None,  # noqa: A002 - as subprocess.run calls it
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node (or `node`) as the ordinary user, by default.

        Args:
            command: Program and arguments; looked up in the PATH of `environment`.
            cwd: Where it runs; the user's home by default.
            env: Variables besides those of `environment`.
            timeout: Seconds after which it and all it started are killed (TimeoutExpired).
            user: "root" for the administrator, "bob" for another user.
            node: A compute node instead of the login node.
            input: Text for its standard input.
            check: Raise CalledProcessError unless it ends with 0.
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.popen(command, cwd=cwd, env=env, user=user, node=node, stdin=stdin)
        try:
            output, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            self.kill_tree(process)
            process.communicate()
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def place(self, user: str | None = None, node: str | None = None) -> tuple[int, int, str]:
        """Where and as whom a command runs: what `enter.py` is told."""
        return self.manager, self._node_process(node), user or self.user

    def node_exec(
        self, node: str, command: Sequence[str | Path], *, user: str = "root", timeout: float = 150
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a compute node, by default as root."""
        return self.run(command, node=node, user=user, timeout=timeout)

    def freeze(self, process: subprocess.Popen[str], number: int = signal.SIGSTOP) -> None:
        """Stop a command of `popen` and all it started, as a suspended host would; or send another signal."""
        for one in descendants(process.pid):
            with suppress(ProcessLookupError):
                os.kill(one, number)

    def thaw(self, process: subprocess.Popen[str]) -> None:
        """Undo `freeze`."""
        self.freeze(process, signal.SIGCONT)

    def kill_tree(self, process: subprocess.Popen[str]) -> None:
        """Kill a command of `popen` and all it started."""
        self.freeze(process, signal.SIGKILL)
        process.kill()

    def order(self, name: str, *, timeout: float = 150, **values: Any) -> dict[str, Any]:
        """Give the manager an order (one of its methods) and wait until it is done."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout)
            client.connect(str(self.layout.control))
            with client.makefile("rw") as stream:
                stream.write(json.dumps({"order": name, **values}) + "\n")
                stream.flush()
                line = stream.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the manager has ended"}
        if "error" in answer:
            raise ClusterError(f"{name}: {answer['error']}")
        return answer

    def _node_process(self, node: str | None) -> int:
        """Process 1 of a node, as numbered inside the cluster; 0 stands for the login node."""
        if node is None:
            return 0
        process = self.order("processes")["nodes"].get(node)
        if process is None:
            raise ClusterError(f"{node} is dead, or no node of this cluster")
        return int(process)
