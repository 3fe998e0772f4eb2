"""The cluster as a test sees it."""

from __future__ import annotations

import atexit
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster import config, mounts, requirements, roots
from tests.cluster.commands import Commands
from tests.cluster.faults import PATIENCE_S, Faults
from tests.cluster.settings import (
    USERS,
    ClusterError,
    ClusterUnavailable,
    Layout,
    Settings,
    python_module,
    write_settings,
)
from tests.cluster.syscalls import start_time

if TYPE_CHECKING:
    from typing_extensions import Self

START_TIMEOUT = 90.0
"""Seconds after which a start counts as failed; it takes 2 to 5 on an idle machine."""

_supervisors: dict[int, subprocess.Popen[bytes]] = {}
"""Those that are children of this process; one that is dropped unwaited would be warned of."""


class Cluster(Faults):
    """A running Slurm cluster. Made by `start` or `attach`, ended by `stop` or its owner's end."""

    def __init__(self, descriptor: Path) -> None:
        """Hold on to a running cluster by its descriptor (see `start` and `attach`)."""
        super().__init__(descriptor)
        values = json.loads(descriptor.read_text())
        self.start_seconds = 0.0
        self._supervisor: int = values["supervisor"]
        self._supervisor_started: int = values["supervisor_started"]

    @classmethod
    def start(
        cls,
        nodes: int = 4,
        gpus_per_node: int = 4,
        accounting: bool = True,
        *,
        system: str | None = None,
        slurm_conf: Sequence[str] = (),
        needs: Sequence[Path] = (),
        owner: int | None = None,
        cgroups: bool = False,
        topology: str = "",
    ) -> Cluster:
        """Start a cluster and wait until every node is idle.

        Args:
            nodes: How many compute nodes; they are called ``n1`` ... ``nN`` (at most 200).
            gpus_per_node: GPUs that Slurm hands out a node (fake devices); 0 for none.
            accounting: With slurmdbd and its database; without it ``sacct`` fails, as on many sites.
            system: Run inside another Debian with another Slurm, a name in `roots.SYSTEMS`.
            slurm_conf: Lines for slurm.conf; each replaces ours of the same key.
            needs: Further paths that the ordinary users must be able to read.
            owner: The process with which the cluster ends at the latest; the caller by default.
            cgroups: Track and limit by the machine's own cgroups (v1), as sites do; one node only.
            topology: The text of topology.conf; slurm.conf has to name the plugin.

        Raises:
            ClusterUnavailable: The machine lacks something; the message says what.
            ClusterError: It should have run; the message holds the ends of the logs.
        """
        requirements.check_machine(system)
        if cgroups:
            requirements.check_cgroups(nodes)
        root = None if system is None else str(roots.root_of(system, requirements.REPOSITORY))
        begin = time.monotonic()
        settings = Settings(
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            accounting=accounting,
            slurm_conf=tuple(slurm_conf),
            needs=(*requirements.python_needs(system), *map(str, needs)),
            system=system,
            root=root,
            cgroups=cgroups,
            topology=topology,
        )
        layout = _prepare(settings)
        child = _start_supervisor(layout, owner or os.getpid())
        _supervisors[child.pid] = child
        cluster = cls(layout.descriptor)
        try:
            answer = cluster.order("start", timeout=START_TIMEOUT)
            if "missing" in answer:
                raise ClusterUnavailable(answer["missing"])
            cluster.wait_until_idle()
            cluster._check_user()
        except BaseException as error:
            logs = cluster.logs()
            cluster.stop()
            if isinstance(error, (OSError, RuntimeError)):
                raise ClusterError(f"the cluster did not start: {error}\n{logs}") from error
            raise
        cluster.start_seconds = time.monotonic() - begin
        print(f"test cluster {layout.root} started in {cluster.start_seconds:.1f} s")
        return cluster

    def _check_user(self) -> None:
        done = self.run([sys.executable, "-c", f"import os; os.listdir({str(requirements.REPOSITORY)!r})"])
        if done.returncode != 0:
            raise ClusterUnavailable(f"an ordinary user cannot run this Python: {done.stderr.strip()}")

    @classmethod
    def attach(cls, descriptor: Path) -> Cluster:
        """Use a cluster that another process has started; `descriptor` is its attribute there."""
        cluster = cls(descriptor)
        if not cluster.alive:
            raise ClusterError(f"the cluster of {descriptor} has ended")
        return cluster

    def stop(self) -> None:
        """End everything and wait until nothing is left. A second call does nothing."""
        if self._supervised():
            os.kill(self._supervisor, signal.SIGTERM)
        end = time.monotonic() + PATIENCE_S
        while self._supervised():
            if time.monotonic() > end:
                raise ClusterError(f"the supervisor of the cluster did not end within {PATIENCE_S:g} s")
            time.sleep(0.01)
        if child := _supervisors.pop(self._supervisor, None):
            child.wait()

    def _supervised(self) -> bool:
        return start_time(self._supervisor) == self._supervisor_started

    def __enter__(self) -> Self:
        """Give the cluster itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.stop()

    def logs(self, lines: int = 15) -> str:
        """The last lines of every log, for the message of a failed test."""
        parts = []
        files = sorted(self.layout.logs.iterdir())
        for file in files:
            if file.suffix == ".out" and file.with_suffix(".log") in files:
                continue  # a daemon of Slurm writes the same into both
            if tail := file.read_text(errors="replace").splitlines()[-lines:]:
                parts.append("\n".join([f"--- {file.name}", *tail]))
        return "\n".join(parts)


@atexit.register
def _leave_supervisors() -> None:
    """Those of shared clusters go on until their owner ends, of which no Popen is to complain."""
    for child in _supervisors.values():
        child.returncode = 0


def _prepare(settings: Settings) -> Layout:
    """Make the folder of a cluster with all that lies in it before a daemon starts."""
    root = Path(tempfile.mkdtemp(prefix="hpcl-")).resolve()
    root.chmod(0o755)
    layout = Layout(root)
    for folder in layout.folders:
        folder.mkdir(mode=0o755)
    layout.scratch.chmod(0o1777)
    layout.run.chmod(0o711)
    for number in range(settings.gpus_per_node):
        device = layout.devices / f"gpu{number}"
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        device.chmod(0o666)
    if settings.root and mounts.FUSE.exists():
        os.mknod(layout.fuse, stat.S_IFCHR | 0o666, mounts.FUSE.stat().st_rdev)
        layout.fuse.chmod(0o666)
    for user in USERS:
        home = layout.home(user)
        home.mkdir(mode=0o755)
        os.chown(home, user.uid, user.uid)
    config.write_config(layout, settings)
    write_settings(layout, settings)
    return layout


def _start_supervisor(layout: Layout, owner: int) -> subprocess.Popen[bytes]:
    """Start the process that watches the owner; returns once the namespaces stand."""
    with (layout.logs / "supervisor.out").open("wb") as output:
        child = subprocess.Popen(
            [*python_module("tests.cluster.supervisor"), str(layout.root), str(owner)],
            cwd=requirements.REPOSITORY,
            env={"PATH": config.SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end = time.monotonic() + START_TIMEOUT
    while not (layout.descriptor.exists() and layout.control.exists()):
        manager_ended = layout.descriptor.exists() and not Commands(layout.descriptor).alive
        if manager_ended or child.poll() is not None or time.monotonic() > end:
            why = (layout.logs / "supervisor.out").read_text()
            child.terminate()
            child.wait()
            raise ClusterError(f"the namespaces of the cluster did not come up\n{why}")
        time.sleep(0.01)
    return child
