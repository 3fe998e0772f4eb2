"""A scheduler in a folder: a job table that outlives the process that submitted, as a cluster's does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import NoContact, NotNow, SubmitRefused, Unreachable
from hpc_launch.base.files import create_once, write_json
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.schedulers.scheduler import ArrayRoom, JobRecord, Scheduler, Submission


@dataclass
class FakeScheduler(Scheduler):
    """`fault` in the folder: `refuse`, `refuse successors`, `full`, `lost` (takes the job, gives no answer), `deaf`
    (neither), `away`, `down` (neither, and does not answer queries)."""

    folder: Path
    clock: Callable[[], float] = time.time
    source: str = "squeue"
    occupied: str | None = None
    states: dict[str, str] = field(default_factory=lambda: {"n2": "down*"})
    tried: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "jobs").mkdir(parents=True, exist_ok=True)

    # What the protocol asks for.

    takes = frozenset({"begin", "dependency", "exclude"})

    def submit(self, submission: Submission) -> str:
        fault = self.fault
        if fault == "refuse" or (fault == "refuse successors" and submission.job_name.endswith(".next")):
            raise SubmitRefused("Invalid account or account/partition combination specified")
        self.tried.append(submission.job_name)
        if fault == "full":
            raise NotNow("Slurm does not take the job at present: QOSMaxSubmitJobPerUserLimit")
        if fault == "too few":
            raise SubmitRefused("Slurm rejected the job: Requested node configuration is not available")
        if fault in ("deaf", "down"):
            raise NoContact("Socket timed out on send/recv operation")
        job_id = self.take(submission)
        if fault == "lost":
            raise NoContact("Socket timed out on send/recv operation")
        return job_id

    def test_only(self, submission: Submission) -> str:
        return f"{submission.job_name} would start now"

    def must_wait(self, script: str, run_folder: Path) -> str | None:
        del script, run_folder
        return self.occupied

    def find(self, job_name: str) -> list[JobRecord]:
        self._ask("find")
        return [self.record(job_id) for job_id in self.jobs() if self.job(job_id)["name"] == job_name]

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        self._ask("query")
        return {job_id: self.record(job_id) for job_id in job_ids if job_id in self.jobs()}

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        self._ask("warn-preempt" if preempt else "warn")

    def cancel(self, job_id: str) -> None:
        self._ask("cancel")
        if not self.record(job_id).ended_for_good:
            self.set(job_id, state="CANCELLED", ended=self.clock())

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        self._ask("exclude")
        self.set(job_id, excluded=list(nodes))

    def preempted(self, job_id: str) -> bool:
        return bool(self.job(job_id).get("preempted"))

    def cluster(self) -> str | None:
        return "elsewhere" if self.fault == "elsewhere" else "here"

    def nodes(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self.states.get(name, "") for name in names}

    def array_room(self, account: str | None, partition: str | None, qos: str | None) -> ArrayRoom | None:
        del account, partition, qos
        return ArrayRoom(1001, 0)

    def size(self, partition: str | None) -> int | None:
        del partition
        return 4

    # What a test does to it.

    @property
    def fault(self) -> str:
        path = self.folder / "fault"
        return path.read_text() if path.exists() else ""

    @fault.setter
    def fault(self, name: str) -> None:
        (self.folder / "fault").write_text(name)

    def take(self, submission: Submission) -> str:
        number = 1
        job = {
            "name": submission.job_name,
            "folder": str(submission.folder),
            "state": "PENDING",
            "options": submission.options,
        }
        while not create_once(self._path(str(number)), json.dumps({**job, "submitted": self.clock()})):
            number += 1
        return str(number)

    def jobs(self) -> list[str]:
        return sorted((path.stem for path in (self.folder / "jobs").glob("*.json")), key=int)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(json.loads(self._path(job_id).read_text()))

    def set(self, job_id: str, **changes: Any) -> None:
        write_json(self._path(job_id), {**self.job(job_id), **changes})

    def forget(self, job_id: str) -> None:
        self._path(job_id).unlink()

    def record(self, job_id: str) -> JobRecord:
        job = self.job(job_id)
        for other in ("folder", "preempted", "excluded", "options"):
            job.pop(other, None)
        return JobRecord(job_id=job_id, source=self.source, as_of=self.clock(), **job)

    def start(self, job_id: str) -> bool:
        """What the script does first: claim the attempt, or end. True where this job trains."""
        attempt = AttemptFolder(Path(self.job(job_id)["folder"]))
        if not create_once(attempt.claim, f"{job_id}\n"):
            self.set(job_id, state="COMPLETED", started=self.clock(), ended=self.clock())
            return False
        self.set(job_id, state="RUNNING", started=self.clock(), nodes="n[1-2]")
        write_json(attempt.start, {"job_id": job_id, "restart": 0, "started": int(self.clock()), "nodes": "n[1-2]"})
        return True

    def speak(self, job_id: str, line: str) -> None:
        log = Path(self.job(job_id)["folder"]) / "logs" / "node-0.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("a") as stream:
            stream.write(line + "\n")

    def end(self, job_id: str, exit_code: int = 0, signal: str = "", **more: Any) -> None:
        """The end record alone: what the controller says of it, a test sets."""
        attempt = AttemptFolder(Path(self.job(job_id)["folder"]))
        record = {"job_id": job_id, "restart": 0, "exit_code": exit_code, "signal": signal, "ended": self.clock()}
        write_json(attempt.end, {**record, "phase": "train", "warned": False, **more})

    def asked(self, what: str) -> list[float]:
        """When the controller was asked."""
        path = self.folder / f"asked-{what}"
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    def _ask(self, what: str) -> None:
        with (self.folder / f"asked-{what}").open("a") as stream:
            stream.write(f"{self.clock()}\n")
        if self.fault in ("away", "down"):
            raise Unreachable("Unable to contact slurm controller (connect failure)")

    def _path(self, job_id: str) -> Path:
        return self.folder / "jobs" / f"{job_id}.json"


class Clock:
    """A time that a test moves on, by `sleep` too; `at(t, act)` does something when it gets there."""

    def __init__(self, now: float | None = None) -> None:
        self.now = time.time() if now is None else now
        self._plans: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def at(self, after_s: float, act: Callable[[], object]) -> None:
        self._plans.append((self.now + after_s, act))

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        for when, act in sorted((plan for plan in self._plans if plan[0] <= until), key=lambda plan: plan[0]):
            self.now = max(self.now, when)
            act()
        self._plans = [plan for plan in self._plans if plan[0] > until]
        self.now = until
