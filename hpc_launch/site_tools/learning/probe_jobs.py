"""Run small probe jobs on the nodes, one per queue, submitted like any run, and read their measurements."""

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
from hpc_launch.base.files import write_atomic
from hpc_launch.base.installed import ARCHIVE, agent_archive
from hpc_launch.base.json_records import read_record
from hpc_launch.base.user_dirs import make_own_folder
from hpc_launch.job.units import format_time
from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.schedulers.scheduler import Scheduler
from hpc_launch.site_tools.learning.host_facts import SmokeRecord

TIME_S = 300
POLL_S = 0.5
REACH = ("github.com:443", "huggingface.co:443")
"""Internet hosts that a training needs. One reachable host is enough."""

Say = Callable[[str], None]
TrackerOf = Callable[[RunFolder], RunTracker]


@dataclass(frozen=True)
class ProbeRequest:
    """A queue to test, with its number of nodes and maximum time (seconds)."""

    queue: str
    nodes: int
    time_s: int | None


@dataclass(frozen=True)
class ProbeResult:
    """Result of a job: the record of each node, or the error."""

    queue: str
    run: str | None
    records: tuple[SmokeRecord, ...] = ()
    fault: str | None = None


@dataclass(frozen=True)
class ProbeContext:
    """Objects to submit and follow the jobs with."""

    scheduler: Scheduler
    index: Index | None
    tracker_of: TrackerOf
    say: Say
    sleep: Callable[[float], None] = time.sleep


def run_probe_jobs(  # noqa: PLR0917 - documented in the docstring
    profile: Path,
    requests: Sequence[ProbeRequest],
    folders: Mapping[str, str],
    base: Path,
    patience_s: float,
    context: ProbeContext,
) -> list[ProbeResult]:
    """Run a job in each queue in parallel, and wait for all of them. Unfinished jobs are cancelled.

    Args: profile: the draft's file. requests: the queues. folders: folders by name, to check on all nodes. base: folder
    on shared storage for the jobs' files. patience_s: maximum time for the jobs, including queueing. context: objects
    to submit and follow the jobs with.

    Raises UsageError if `base` is not writable.
    """
    started: dict[str, tuple[RunFolder, Path] | str] = {}
    try:
        for request in requests:
            started[request.queue] = _start(profile, request, folders, base / request.queue, context)
        return _wait(started, patience_s, context)
    finally:
        for submission in started.values():
            if not isinstance(submission, str):
                with suppress(SchedulerError):
                    cancel_run(submission[0], context.scheduler)


def _start(
    profile: Path, request: ProbeRequest, folders: Mapping[str, str], folder: Path, context: ProbeContext
) -> tuple[RunFolder, Path] | str:
    try:
        make_own_folder(folder.parent)
        make_own_folder(folder)
        write_atomic(folder / ARCHIVE, agent_archive())
        write_atomic(folder / "job.yaml", json.dumps(_job(request, folders, folder), indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}", "set HPC_LAUNCH_HOME to another folder") from error
    try:
        ready = prepare_job(folder / "job.yaml", site=str(profile))
        run, _, job_id = submit_new(first_attempt(ready, ()), context.scheduler, index=context.index)
    except (Refused, SchedulerError) as error:
        context.say(f"{request.queue}: {error}")
        return str(error)
    context.say(f"{request.queue}: job {job_id} on {request.nodes} node{'s' if request.nodes > 1 else ''}")
    return run, folder


def _job(request: ProbeRequest, folders: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The job file as JSON, which is valid YAML."""
    command = ["python3", str(folder / ARCHIVE), "smoke", str(folder), "--python", sys.executable]
    for name, path in folders.items():
        command += ["--folder", f"{name}={path}"]
    for target in REACH:
        command += ["--reach", target]
    return {
        "name": "smoke",
        "queue": request.queue,
        "nodes": request.nodes,
        "processes_per_node": 1,
        "time": format_time(min(TIME_S, request.time_s or TIME_S)),
        "launcher": "srun",
        "command": [word.replace("${", "$${") for word in command],
        "retry": {"max_attempts": 1},
        "notify": None,
    }


def _wait(
    started: Mapping[str, tuple[RunFolder, Path] | str], patience_s: float, context: ProbeContext
) -> list[ProbeResult]:
    runs = {queue: submission for queue, submission in started.items() if not isinstance(submission, str)}
    trackers = {queue: context.tracker_of(run) for queue, (run, _) in runs.items()}
    statuses: dict[str, RunStatus] = {}
    end = time.monotonic() + patience_s
    waiting = dict(runs)
    while waiting and time.monotonic() < end:
        for queue, (run, _) in list(waiting.items()):
            status = statuses[queue] = trackers[queue].poll(background=True)[run.name]
            if status.final or status.state == "STUCK":
                context.say(f"{queue}: {status.state}")
                del waiting[queue]
        context.sleep(POLL_S if waiting else 0)
    return [
        _result(queue, submission, statuses.get(queue), late=queue in waiting) for queue, submission in started.items()
    ]


def _result(
    queue: str, submission: tuple[RunFolder, Path] | str, status: RunStatus | None, *, late: bool
) -> ProbeResult:
    if isinstance(submission, str):
        return ProbeResult(queue, None, fault=submission)
    run, folder = submission
    paths = sorted(folder.glob("rank-*.json"))
    records = tuple(record for path in paths if (record := read_record(path, SmokeRecord)) is not None)
    if late:
        return ProbeResult(queue, run.name, records, f"timed out: {status.state if status else 'SUBMITTING'}")
    if status is None or status.state != "COMPLETED" or not records:
        reason = f"{status.state}: {status.reason or 'see its log'}" if status else "its status is unknown"
        return ProbeResult(queue, run.name, records, reason)
    return ProbeResult(queue, run.name, records)


def shared_base(name: str) -> Path:
    """Folder for the jobs' files: next to the runs, on shared storage."""
    home = os.environ.get("HPC_LAUNCH_HOME") or os.path.join(os.path.expanduser("~"), "hpc-launch", "runs")
    # Directly there: in a folder for all such jobs, whoever made it could replace what others put there.
    return Path(home) / f"learn-{name}-{time.strftime('%y%m%d-%H%M%S')}-{os.urandom(4).hex()}"
