"""Small jobs on the nodes themselves, one a queue, submitted as every run is; what they measured is read back."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import Refused, SchedulerError, UsageError
from hpc_launch.base.files import read_json, read_text, write_atomic
from hpc_launch.drive.attempts import first_attempt
from hpc_launch.drive.prepare import make_ready
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.status.run_status import RunStatus
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.run.submitting.cancel_run import cancel_run
from hpc_launch.run.submitting.submit_attempt import RunIndex, submit_new
from hpc_launch.schedulers.scheduler import Scheduler
from hpc_launch.spec.units import format_time

PROGRAM = Path(__file__).parents[2] / "agent" / "hpc_launch_smoke.py"
TIME_S = 300
POLL_S = 0.5
REACH = ("github.com:443", "huggingface.co:443")
"""What a training wants of the internet. One answer is enough."""

Say = Callable[[str], None]
TrackerOf = Callable[[RunFolder], RunTracker]


@dataclass(frozen=True)
class Wish:
    """A queue to try: with so many nodes, for so long at most (seconds)."""

    queue: str
    nodes: int
    time_s: int | None


@dataclass(frozen=True)
class Smoked:
    """What came of a job: the record of each node, or why there is none."""

    queue: str
    run: str | None
    records: tuple[Mapping[str, Any], ...] = ()
    fault: str | None = None


@dataclass(frozen=True)
class Around:
    """What the jobs are submitted and followed with."""

    scheduler: Scheduler
    index: RunIndex | None
    tracker_of: TrackerOf
    say: Say
    sleep: Callable[[float], None] = time.sleep


def smoke(  # noqa: PLR0917 - each is told in the docstring
    profile: Path, wishes: Sequence[Wish], folders: Mapping[str, str], base: Path, patience_s: float, around: Around
) -> list[Smoked]:
    """Run a job in each queue, all at once, and wait for them together. What is left of them is cancelled.

    Args:
        profile: The draft's file.
        wishes: The queues.
        folders: Folders by name, of which is asked whether all nodes see them.
        base: A folder on shared storage, for the jobs' files.
        patience_s: How long jobs may take, their wait in the queue included.
        around: What the jobs are submitted and followed with.

    Raises UsageError where `base` cannot be written.
    """
    started: dict[str, tuple[RunFolder, Path] | str] = {}
    try:
        for wish in wishes:
            started[wish.queue] = _start(profile, wish, folders, base / wish.queue, around)
        return _await(started, patience_s, around)
    finally:
        for begun in started.values():
            if not isinstance(begun, str):
                with suppress(SchedulerError):
                    cancel_run(begun[0], around.scheduler)


def _start(
    profile: Path, wish: Wish, folders: Mapping[str, str], folder: Path, around: Around
) -> tuple[RunFolder, Path] | str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / PROGRAM.name, read_text(PROGRAM))
        write_atomic(folder / "job.yaml", json.dumps(_job(wish, folders, folder), indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}", "HPC_LAUNCH_HOME names another folder") from error
    try:
        ready = make_ready(folder / "job.yaml", site=str(profile))
        run, _, job_id = submit_new(first_attempt(ready, ()), around.scheduler, index=around.index)
    except (Refused, SchedulerError) as error:
        around.say(f"{wish.queue}: {error}")
        return str(error)
    around.say(f"{wish.queue}: job {job_id} on {wish.nodes} node{'s' if wish.nodes > 1 else ''}")
    return run, folder


def _job(wish: Wish, folders: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """A job file; JSON is YAML."""
    words = ["python3", str(folder / PROGRAM.name), str(folder), "--python", sys.executable]
    for name, path in folders.items():
        words += ["--folder", f"{name}={path}"]
    for target in REACH:
        words += ["--reach", target]
    return {
        "name": "smoke",
        "queue": wish.queue,
        "nodes": wish.nodes,
        "processes_per_node": 1,
        "time": format_time(min(TIME_S, wish.time_s or TIME_S)),
        "launcher": "srun",
        "command": [word.replace("${", "$${") for word in words],
        "retry": {"max_attempts": 1},
    }


def _await(started: Mapping[str, tuple[RunFolder, Path] | str], patience_s: float, around: Around) -> list[Smoked]:
    runs = {queue: begun for queue, begun in started.items() if not isinstance(begun, str)}
    trackers = {queue: around.tracker_of(run) for queue, (run, _) in runs.items()}
    last: dict[str, RunStatus] = {}
    end = time.monotonic() + patience_s
    waiting = dict(runs)
    while waiting and time.monotonic() < end:
        for queue, (run, _) in list(waiting.items()):
            status = last[queue] = trackers[queue].poll(background=True)[run.name]
            if status.final or status.state == "STUCK":
                around.say(f"{queue}: {status.state}")
                del waiting[queue]
        around.sleep(POLL_S if waiting else 0)
    return [_result(queue, begun, last.get(queue), late=queue in waiting) for queue, begun in started.items()]


def _result(queue: str, begun: tuple[RunFolder, Path] | str, status: RunStatus | None, *, late: bool) -> Smoked:
    if isinstance(begun, str):
        return Smoked(queue, None, fault=begun)
    run, folder = begun
    found = sorted(folder.glob("rank-*.json"))
    records = tuple(record for path in found if (record := read_json(path)) is not None)
    if late:
        return Smoked(queue, run.name, records, f"not over in time: {status.state if status else 'SUBMITTING'}")
    if status is None or status.state != "COMPLETED" or not records:
        reason = f"{status.state}: {status.reason or 'see its log'}" if status else "it was not seen"
        return Smoked(queue, run.name, records, reason)
    return Smoked(queue, run.name, records)


def shared_base(name: str) -> Path:
    """Where the jobs' files go: beside the runs, on storage that all nodes see."""
    home = os.environ.get("HPC_LAUNCH_HOME") or os.path.join(os.path.expanduser("~"), "hpc-launch", "runs")
    return Path(home) / "learn" / f"{name}-{time.strftime('%y%m%d-%H%M%S')}-{os.getpid()}"
