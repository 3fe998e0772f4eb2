"""The place in which a row happens: a user on a cluster, one run, and the record of what its training really did."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.prove.row import Row, nothing
from tests.slurm.user import PROFILES, User

TRAINING = REPOSITORY / "tests" / "prove" / "training" / "train.py"
RECORDS: dict[str, Any] = {
    "progress": {"step": r"step (\d+)/(\d+)", "loss": r"loss (\S+)"},
    "checkpoint": {
        "dir": "${run.dir}/saved",
        "pattern": r"step-(\d+)",
        "complete": ["state.json"],
        "resume": {"args": {"from": "${checkpoint.path}"}},
    },
}
"""The keys of a job by which the steps and checkpoints of the trainings here are found."""
OVER = ("COMPLETED", "FAILED", "STOPPED", "CANCELLED", "STUCK")


@dataclass(frozen=True)
class Line:
    """A line of the training's own record."""

    time: float
    attempt: int
    what: str
    words: tuple[str, ...]


def read_record(path: Path) -> list[Line]:
    """What a training wrote of itself so far."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else ():
        moment, attempt, what, *words = text.split()
        lines.append(Line(float(moment), int(attempt), what, tuple(words)))
    return lines


@dataclass
class Scene:
    """One row on its cluster."""

    row: Row
    user: User
    run: dict[str, Any] = field(default_factory=dict)
    planted: float | None = None
    """When the fault happened, where it did not happen in the training."""
    left: dict[str, Any] = field(default_factory=dict)
    """What one step of a row leaves for a later one."""

    @property
    def cluster(self) -> Cluster:
        return self.user.cluster

    @property
    def record_file(self) -> Path:
        return self.user.home / "record"

    @property
    def run_folder(self) -> Path:
        return Path(self.run["folder"])

    def job(self, **changes: Any) -> dict[str, Any]:
        """The usual job with what the row changes; a mapping in `changes` is merged, None takes a key away."""
        args: dict[str, Any] = {"folder": "${run.dir}/saved", "record": str(self.record_file), **self.row.args}
        job: dict[str, Any] = {
            "name": self.row.key,
            "launcher": "srun",
            "nodes": 2,
            "processes_per_node": 1,
            "cpus_per_node": 1,
            "time": "00:10:00",
            "script": str(TRAINING),
            "args": args,
            "retry": {"backoff": "1s"},
            **copy.deepcopy(RECORDS),
        }
        for source in (self.row.job, changes):
            for key, value in source.items():
                if value is None:
                    job.pop(key, None)
                elif isinstance(value, dict) and isinstance(job.get(key), dict):
                    job[key] = {**job[key], **value}
                else:
                    job[key] = value
        return job

    def profile(self) -> None:
        """Give the user the site profile with the row's changes."""
        if not self.row.profile:
            return
        text = (PROFILES / "testcluster.yaml").read_text()
        for old, new in self.row.profile:
            assert old in text, old
            text = text.replace(old, new)
        self.user.job(text, "sites/testcluster.yaml")

    def submit(self) -> subprocess.CompletedProcess[str]:
        """Submit the row's job, and take hold of its run where there is one."""
        done = self.user.launch("submit", self.user.job(json.dumps(self.job(), indent=1)), "--json", *self.row.options)
        if done.returncode == 0:
            self.run = json.loads(done.stdout)
        else:
            folders = sorted((self.user.home / "runs").glob("*/run.json"))
            self.run = {"run": folders[-1].parent.name, "folder": str(folders[-1].parent)} if folders else {}
        return done

    def record(self) -> list[Line]:
        """What the training wrote of itself so far."""
        return read_record(self.record_file)

    def reached(self, step: int, attempt: int) -> bool:
        """Whether the training of an attempt has made a step."""
        return any(
            line.what == "step" and line.attempt == attempt and int(line.words[0]) >= step for line in self.record()
        )

    def until_step(self, step: int, attempt: int = 1) -> None:
        """Wait until the training of an attempt has made a step."""

        wait_until(
            lambda: self.reached(step, attempt),
            explain=lambda: f"step {step} of attempt {attempt} did not come: {self.told()}",
        )

    def told(self) -> str:
        """Where the run stands, for a message."""
        if not self.run:
            return "no run"
        status = self.status()
        return f"{status['state']}: {status['reason']}; {self.cluster.jobs()}"

    def status(self) -> dict[str, Any]:
        return self.user.status(self.run["run"])

    def why(self, attempt: int) -> dict[str, Any]:
        """What `why` says of an attempt; empty where it says nothing."""
        done = self.user.launch("why", self.run["run"], "--attempt", str(attempt), "--json")
        told: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return told

    def node(self, index: int) -> str:
        """A node of the first attempt by its place, from the job's own record."""
        rank = {line.words[0]: line.words[1] for line in self.record() if line.what == "start" and line.attempt == 1}
        job = self.job()
        return rank[str(index * int(job["processes_per_node"]))]

    @property
    def struck(self) -> str | None:
        """The name of the node that is to be blamed, if one is."""
        return self.node(self.row.node) if isinstance(self.row.node, int) else self.row.node

    def fill(self, text: str) -> str:
        """A text with this run's job and nodes (`row.command`)."""
        text = re.sub(r"NODE(\d)", lambda found: self.node(int(found[1])), text)
        return text.replace("JOB", str(self.run.get("job_id")))

    def act(self) -> None:
        """Let the row's fault happen, once the training has come so far."""
        if self.row.act is nothing:
            return
        if self.row.at:
            self.until_step(self.row.at)
        self.happens()
        self.row.act(self)

    def happens(self) -> None:
        """The fault happens now."""
        self.planted = time.time()

    def finish(self, driver: subprocess.Popen[str] | None, seconds: float) -> dict[str, Any]:
        """Wait for the run's end: by its driver, then by the status alone."""
        end = time.monotonic() + seconds
        if driver is not None:
            try:
                driver.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                self.cluster.kill_tree(driver)
                driver.communicate()
        status = self.status()
        while status["state"] not in OVER and time.monotonic() < end:
            time.sleep(1)
            status = self.status()
        return status
