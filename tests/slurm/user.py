"""A user on the login node of the test cluster, with hpc-launch as the only tool in hand."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.cluster.faults import PATIENCE_S, wait_until
from tests.cluster.requirements import REPOSITORY
from tests.forked import hpc_launch_text
from tests.json_output import check_output

PROFILES = REPOSITORY / "tests" / "sites" / "profiles"
SMALL = ("--set=args.width=32", "--set=args.layers=1", "--set=args.context=32")
"""Let the example's steps take next to no time."""


@dataclass(frozen=True)
class User:
    """Every folder of hpc-launch lies in `home`, on the cluster's shared storage."""

    cluster: Cluster
    home: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "HPC_LAUNCH_SITE_PATH": f"{self.home / 'sites'}:{PROFILES}",
            "HPC_LAUNCH_SITE": "testcluster",
            "HPC_LAUNCH_HOME": str(self.home / "runs"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
        }

    def job(self, text: str, name: str = "job.yaml") -> str:
        """Write a job file and return its path."""
        path = self.home / name
        self.cluster.run(["mkdir", "-p", str(path.parent)], check=True)
        self.cluster.write(path, text)
        return str(path)

    def site(self, more: str = "", *changes: tuple[str, str]) -> None:
        """Give this user a profile of their own for the cluster: the shared one, with `more` keys of the top level."""
        text = (PROFILES / "testcluster.yaml").read_text()
        for old, new in changes:
            text = text.replace(old, new)
        self.job(text + more, "sites/testcluster.yaml")

    @contextmanager
    def mounted(self, node: str, *words: str) -> Iterator[None]:
        """`mount WORDS` on a node, where the last word is the place."""
        self.cluster.run(["mount", *words], user="root", node=node, check=True)
        try:
            yield
        finally:
            self.cluster.run(["umount", words[-1]], user="root", node=node, check=True)

    def little_shared_memory(self, node: str) -> AbstractContextManager[None]:
        """A fault that the node check finds: 1 MiB is left in a node's /dev/shm."""
        return self.mounted(node, "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm")

    def launch(
        self, *args: str, timeout: float = PATIENCE_S, env: dict[str, str] | None = None, node: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run hpc-launch to its end, whatever its exit code; on the login node unless a `node` is named."""
        every = {**self.cluster.environment(), **self.env, **(env or {})}
        if self.cluster.settings.root is None:
            return hpc_launch_text(args, cwd=self.home, env=every, timeout=timeout, place=self.cluster.place(node=node))
        # Another Debian has another C library, which only a program that is executed there loads.
        done = self.cluster.run(["hpc-launch", *args], node=node, cwd=self.home, env=every, timeout=timeout)
        check_output(args, done.stdout)
        return done

    def popen(self, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start hpc-launch and leave it running."""
        return self.cluster.popen(["hpc-launch", *args], cwd=self.home, env={**self.env, **(env or {})})

    def submit(self, job: str, *args: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        """Submit a job, by its text or its path, and return what `--json` says."""
        file = job if job.startswith("/") else self.job(job)
        done = self.launch("submit", file, "--json", *args, env=env)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def completed(self, job: str, *args: str, env: dict[str, str] | None = None) -> str:
        """Submit a job file, wait for its good end, and return its log."""
        done = self.launch("submit", job, "--wait", *args, env=env)
        log = self.launch("logs", "@last").stdout
        assert done.returncode == 0, done.stdout + done.stderr + log
        return log

    def status(self, run: str = "@last") -> dict[str, Any]:
        done = self.launch("status", run, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def nodes(self) -> list[str]:
        """Where the newest run's first attempt is: other tests may have had the first nodes."""
        nodes: list[str] = self.status()["attempts"][0]["nodes"]
        return nodes

    def places(self, per_node: int) -> set[tuple[str, str]]:
        """(rank, node) of each process, in blocks of `per_node` on the nodes in Slurm's order."""
        ranks = enumerate(node for node in self.nodes() for _ in range(per_node))
        return {(str(rank), node) for rank, node in ranks}

    def until(self, run: str, *states: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """The status once it is one of `states`. Asks when a record of a run has changed, and every three seconds."""
        end, seen, asked = time.monotonic() + seconds, "", 0.0
        while True:
            records = self._records()
            if records != seen or time.monotonic() - asked > 3:
                seen, asked = records, time.monotonic()
                status = self.status(run)
                if status["state"] in states:
                    return status
                assert time.monotonic() < end, status
            time.sleep(0.3)

    def _records(self) -> str:
        """When the files of the attempts were written."""
        found = []
        for path in sorted(self.home.glob("runs/*/attempts/*/*")):
            with suppress(OSError):
                found.append(f"{path} {path.stat().st_mtime_ns}")
        return "\n".join(found)

    @property
    def marker(self) -> Path:
        """Where a training may say that it runs."""
        return self.home / "trained"

    def trainings(self, marker: Path | None = None) -> list[str]:
        """Who really trained: one line for each process that got as far as the training."""
        path = marker or self.marker
        return path.read_text().splitlines() if path.exists() else []

    def processes(self, node: str, word: str = "") -> list[str]:
        """The command lines of this test's processes on a node, with a word in them."""
        listed = self.cluster.node_exec(node, ["ps", "-ww", "-u", self.cluster.user, "-o", "args="]).stdout
        return [line for line in listed.splitlines() if str(self.home) in line and word in line]

    def nothing_left(self, seconds: float = PATIENCE_S) -> None:
        """Wait until no process of the test is left on any node."""
        for node in self.cluster.nodes:
            wait_until(
                lambda node=node: not self.processes(node),  # type: ignore[misc]
                explain=lambda node=node: f"{node}: {self.processes(node)}",  # type: ignore[misc]
                timeout=seconds,
                every=0.5,
            )
