"""The Slurm scheduler as a user on a cluster's login node has it: each call is a process of its own there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_launch.schedulers.scheduler import JobRecord
from tests.cluster import Cluster
from tests.forked import hpc_launch_text


class Failed(Exception):
    """The scheduler raised a SchedulerError; `kind` is its class."""

    def __init__(self, kind: str, message: str, hint: str | None) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint


@dataclass
class LoginNode:
    """Calls of the scheduler, with a state folder of their own."""

    cluster: Cluster
    home: Path
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    attempts: int = 0

    def environment(self) -> Mapping[str, str]:
        return {"XDG_STATE_HOME": str(self.home / "state"), **self.env}

    def call(self, method: str, **values: Any) -> Any:
        done = hpc_launch_text(
            [method],
            cwd=self.home,
            env={**self.cluster.environment(self.user), **self.environment()},
            input=json.dumps(values).encode(),
            timeout=300,
            place=self.cluster.place(self.user),
            module="tests.schedulers.driver",
        )
        # Nothing else may be printed: the caller's stdout is data, and its stderr for people.
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise Failed(answer["error"], answer["message"], answer["hint"])
        return answer["result"]

    def folder(self) -> Path:
        """A fresh attempt folder; a space and a percent sign are in its name on purpose."""
        self.attempts += 1
        folder = self.home / f"run 100%x {self.attempts}"
        self.cluster.run(["mkdir", folder], check=True)
        return folder

    def submit(self, body: str, *options: str, name: str = "job.t0.1", folder: Path | None = None, **more: Any) -> str:
        where = str(folder or self.folder())
        text = f"#!/bin/bash\n{body}\n"
        job: str = self.call("submit", script=text, folder=where, job_name=name, options=options, **more)
        return job

    def query(self, *job_ids: str, fresh: bool = True) -> dict[str, JobRecord]:
        found = self.call("query", job_ids=job_ids, fresh=fresh)
        return {job_id: record(value) for job_id, value in found.items()}

    def find(self, name: str) -> list[JobRecord]:
        return [record(value) for value in self.call("find", job_name=name)]

    def until(self, job_id: str, ready: Callable[[JobRecord], bool], timeout: float = 150) -> JobRecord:
        """The first record of a job that is as wanted."""
        end = time.monotonic() + timeout
        while True:
            found = self.query(job_id).get(job_id)
            if found is not None and ready(found):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.3)


def record(value: dict[str, Any]) -> JobRecord:
    steps = tuple((step, state, code) for step, state, code in value.pop("steps"))
    return JobRecord(**value, steps=steps)
