"""Where a cell happens: one run of one user, on this machine, on a small Slurm of its own, or on hosts over ssh."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.cluster.ssh import connect_nodes
from tests.forked import hpc_launch_text
from tests.prove.administrator import controller_away, order
from tests.prove.grid.cells import OUTSIDE, Cell
from tests.prove.rounds import processes
from tests.prove.scene import RECORDS
from tests.slurm.user import User
from tests.ssh.ssh_user import SshUser

TRAINING = REPOSITORY / "tests" / "prove" / "training"
PROGRAM = ("grid.py", "meeting.py")
HANG_S, BUSY_S, PATIENCE_S = 8, 20, 60
STEPS = {"time limit": 450}
"""How many steps a training has that is to live through an event, at five per second; others have 100, or 40 where a
process beside the ranks is struck: it must not be over by then."""


class Place:
    """A home for one run on this machine."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.home = self._home()
        self.record, self.project = self.home / "record", self.home / "project"

    def _home(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="hpcl-grid-"))

    def job(self) -> dict[str, Any]:
        """The job file of the cell."""
        alone, inside = self.cell.launcher == "none", self.cell.who not in (*OUTSIDE, "scheduler")
        fault = {"what": self.cell.what, "who": self.cell.who, "when": self.cell.when} if inside else {}
        if not inside:
            fault = {"steps": str(STEPS.get(self.cell.value, 100 if self.cell.who == "scheduler" else 40))}
        return {
            "name": "cell",
            "launcher": self.cell.launcher,
            "processes_per_node": 1 if alone else 2,
            "hang": {"after": f"{patience(HANG_S):.0f}s", "busy_after": f"{patience(BUSY_S):.0f}s"},
            "retry": {"backoff": "1s", "max_attempts": 2},
            **RECORDS,
            "args": {
                "folder": "${run.dir}/saved",
                "record": str(self.record),
                "patience": f"{patience(PATIENCE_S):.0f}",
                **fault,
            },
            **({"command": [sys.executable, "grid.py"]} if alone else {"script": "grid.py"}),
        }

    def write(self) -> None:
        """Put the training and the job file there."""
        self.project.mkdir()
        for name in PROGRAM:
            shutil.copy(TRAINING / name, self.project)
        (self.project / "job.yaml").write_text(json.dumps(self.job(), indent=1))

    def call(self, *words: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run hpc-launch to its end, whatever its exit code."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.home), "HPC_LAUNCH_SITE": "local", "HPC_LAUNCH_HOME": str(self.home / "runs")}
        return hpc_launch_text(words, cwd=self.project, env={**kept, **own}, timeout=patience(seconds))

    def steps(self) -> list[tuple[int, int, int]]:
        """Attempt, rank and step of each step that was made."""
        rows = [line.split() for line in self.record.read_text().splitlines()] if self.record.exists() else []
        return [(int(one), int(two), int(three)) for one, two, three in (row for row in rows if len(row) == 3)]

    def strike(self) -> None:
        """Let what happens beside the ranks happen, once the training is there."""
        wanted = 1 if self.cell.when == "first step" else 3
        wait_until(
            lambda: any(step >= wanted for _, _, step in self.steps()),
            explain=lambda: "the training did not come so far",
            timeout=patience(90),
            every=0.05,
        )
        if self.cell.who == "scheduler":
            self.happens(self.cell.value)
            return
        if not (found := self._processes(self.cell.who)):
            raise ProcessLookupError(f"no {self.cell.who} runs")
        for pid in found:
            os.kill(pid, getattr(signal, f"SIG{self.cell.value}"))

    def happens(self, event: str) -> None:
        """Nothing happens on this machine."""
        raise NotImplementedError(event)

    def _processes(self, who: str) -> list[int]:
        """The processes of this run that are the launcher, the watcher or the job's script."""
        is_it: dict[str, Callable[[str], bool]] = {
            "launcher": lambda text: any(word in text for word in self._launcher()),
            "watcher": lambda text: "agent.pyz" in text and " watch" in text,
            "script": lambda text: "script.sh" in text and text.split(" ")[0].endswith("bash"),
        }
        found = [one.number for one in processes(str(self.home)) if is_it[who](one.command)]
        return sorted(found)[:1] if who != "watcher" else found

    def _launcher(self) -> tuple[str, ...]:
        return {"srun": ("srun ",), "deepspeed": ("deepspeed",)}.get(
            self.cell.launcher, ("torch.distributed.run", "torchrun")
        )

    def node(self, index: int) -> str | None:
        """The name of a node of the first attempt; None where there is but one."""
        return None

    def end(self, kept: Path | None) -> None:
        """End what still runs, and keep what there is for whoever looks into it."""
        self.call("cancel", "@last")
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.home, kept, symlinks=True, ignore=_special)
        shutil.rmtree(self.home, ignore_errors=True)


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes and sockets cannot be copied."""
    paths = {name: Path(folder, name) for name in names}
    return [name for name, path in paths.items() if not (path.is_file() or path.is_dir() or path.is_symlink())]


class SlurmPlace(Place):
    """A run on two nodes of a Slurm of its own, which has a third one."""

    def _home(self) -> Path:
        self.cluster = Cluster.start(nodes=3, gpus_per_node=0, accounting=self.cell.accounting)
        self.user = self._user(self.cluster.user_folder("grid-"))
        return self.user.home

    def _user(self, home: Path) -> User:
        return User(self.cluster, home)

    def job(self) -> dict[str, Any]:
        return {**super().job(), "nodes": 2, "processes_per_node": 1, "cpus_per_node": 1, "time": "00:10:00"}

    def write(self) -> None:
        for name in PROGRAM:
            self.user.job((TRAINING / name).read_text(), f"project/{name}")
        self.user.job(json.dumps(self.job(), indent=1), "project/job.yaml")

    def call(self, *words: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        command = ["hpc-launch", *words]
        return self.cluster.run(command, cwd=self.project, env=self.user.env, timeout=patience(seconds))

    def _attempt(self) -> dict[str, Any]:
        """The first attempt."""
        found: dict[str, Any] = json.loads(self.call("status", "@last", "--json").stdout)["attempts"][0]
        return found

    def node(self, index: int) -> str | None:
        return str(self._attempt()["nodes"][index])

    def happens(self, event: str) -> None:
        """What Slurm or a person does to the job, or what becomes of its second node."""
        attempt = self._attempt()
        job, node = str(attempt["job_id"]), str(attempt["nodes"][1])
        if event == "power":
            self.cluster.kill_node(node)
        elif event == "cable":
            self.cluster.cut(node)
        elif event == "sshd":
            assert isinstance(self.user, SshUser)
            self.user.kill(node, "sshd")
        elif event == "slurmd":
            self.cluster.kill_slurmd(node)
        elif event == "controller":
            controller_away(self.cluster, 5)
        elif event == "cancel":
            self.cluster.run(["scancel", job], check=True)
        else:
            order(self.cluster, event, job=job, node=node)
        if event == "suspend":
            time.sleep(3)
            order(self.cluster, "resume", job=job)

    def end(self, kept: Path | None) -> None:
        try:
            super().end(kept)
            if kept is not None:
                (kept / "cluster.log").write_text(self.cluster.logs(80))
        finally:
            self.cluster.stop()


class SshPlace(SlurmPlace):
    """A run on two of three hosts over ssh."""

    def _user(self, home: Path) -> User:
        connect_nodes(self.cluster)
        user = SshUser(self.cluster, home)
        user.profile("hosts: {n1: 1, n2: 1, n3: 1}")
        return user

    def job(self) -> dict[str, Any]:
        return {name: value for name, value in super().job().items() if name != "cpus_per_node"}


PLACES = {"local": Place, "slurm": SlurmPlace, "ssh": SshPlace}
"""By scheduler."""
