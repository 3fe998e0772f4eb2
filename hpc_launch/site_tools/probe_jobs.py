"""Run small probe jobs on the nodes, one per queue, submitted like any run, and draft facts from what they measured."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_launch.base.agent_archive import agent_archive
from hpc_launch.base.counted import counted
from hpc_launch.base.errors import Refused, SchedulerError, UsageError
from hpc_launch.base.files import write_atomic
from hpc_launch.base.installed import ARCHIVE
from hpc_launch.base.json_records import read_record
from hpc_launch.base.user_dirs import make_own_folder
from hpc_launch.job.units import format_time
from hpc_launch.preflight.short_run import Context
from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.site_tools.draft_profile import ProfileDraft, put_gpus
from hpc_launch.site_tools.host_facts import RUNTIMES, SmokeRecord, models
from hpc_launch.sites.this_machine import names

TIME_S = 300
POLL_S = 0.5
WITH_TORCH = 'if (cd / && "$0" -c "import torch") 2>/dev/null; then exec "$0" "$@"; else exec python3 "$@"; fi'
"""Run a program with the interpreter of hpc-launch if that has PyTorch on the node, else with the node's own."""
REACH = ("github.com:443", "huggingface.co:443")
"""Internet hosts that a training needs. One reachable host is enough."""


@dataclass(frozen=True)
class ProbeRequest:
    """A queue to test, with its number of nodes and maximum time (seconds)."""

    queue: str
    nodes: int
    time_s: int | None


@dataclass
class ProbeResult:
    """Result of a job: its run, the record of each node, and why it has none."""

    queue: str
    run: RunFolder | None = None
    records: tuple[SmokeRecord, ...] = ()
    fault: str | None = None


def run_probe_jobs(  # noqa: PLR0917 - documented in the docstring
    profile: Path,
    requests: Sequence[ProbeRequest],
    folders: Mapping[str, str],
    base: Path,
    patience_s: float,
    context: Context,
) -> list[ProbeResult]:
    """Run a job in each queue in parallel, and wait for all of them. Unfinished jobs are cancelled.

    `profile`: the draft's file. `folders`: to check on all nodes, by name. `base`: on shared storage, for files of
    the jobs. `patience_s`: maximum time, including queueing. Raises UsageError if `base` is not writable.
    """
    jobs: list[ProbeResult] = []
    try:
        for request in requests:
            jobs.append(_start(profile, request, folders, base / request.queue, context))
        _wait(jobs, patience_s, context)
        for job in jobs:
            paths = sorted((base / job.queue).glob("rank-*.json"))
            job.records = tuple(record for path in paths if (record := read_record(path, SmokeRecord)) is not None)
            job.fault = job.fault or (None if job.records else "COMPLETED: see its log")
        return jobs
    finally:
        for job in jobs:
            if job.run is not None:
                with suppress(SchedulerError):
                    cancel_run(job.run, context.scheduler)


def _start(
    profile: Path, request: ProbeRequest, folders: Mapping[str, str], folder: Path, context: Context
) -> ProbeResult:
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
        return ProbeResult(request.queue, fault=str(error))
    context.say(f"{request.queue}: job {job_id} on {counted(request.nodes, 'node')}")
    return ProbeResult(request.queue, run, fault="timed out: SUBMITTING")


def _job(request: ProbeRequest, folders: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The job file as JSON, which is valid YAML."""
    command = ["sh", "-c", WITH_TORCH, sys.executable, str(folder / ARCHIVE), "smoke", str(folder)]
    command += ["--python", sys.executable]
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


def _wait(jobs: Sequence[ProbeResult], patience_s: float, context: Context) -> None:
    """Follow the jobs until all have ended or are stuck, or the time is over."""
    end = time.monotonic() + patience_s
    waiting = [(job, job.run, context.tracker_of(job.run)) for job in jobs if job.run is not None]
    while waiting and time.monotonic() < end:
        for one in list(waiting):
            job, run, tracker = one
            status = tracker.poll(background=True)[run.name]
            job.fault = f"timed out: {status.state}"
            if status.final or status.state == "STUCK":
                context.say(f"{job.queue}: {status.state}")
                job.fault = None if status.state == "COMPLETED" else f"{status.state}: {status.reason or 'see its log'}"
                waiting.remove(one)
        time.sleep(POLL_S if waiting else 0)


def shared_base(name: str) -> Path:
    """Folder for the jobs' files: next to the runs, on shared storage."""
    # Directly there: in a folder for all such jobs, whoever made it could replace what others put there.
    return Path(names(os.environ)["runs"]) / f"learn-{name}-{time.strftime('%y%m%d-%H%M%S')}-{os.urandom(4).hex()}"


VERIFIED = "measured by jobs on the nodes"
_GROUPS = ("network", "fabric", "internet")


def add_measurements(draft: ProfileDraft, probe_results: Sequence[ProbeResult], day: str, user: str) -> list[str]:
    """Add the measurements to the draft. Returns one line per error."""
    successful = [one for one in probe_results if one.fault is None]
    faults = [f"{one.queue}: {one.fault}" for one in probe_results if one.fault]
    records = [record for one in successful for record in one.records]
    for one in successful:
        faults += [f"{one.queue}: {fault}" for record in one.records for fault in record.faults]
    if not successful:
        return faults
    _network(draft, records)
    faults += _gpus(draft, successful)
    _folders(draft, records)
    _internet(draft, records)
    found = {RUNTIMES.get(name, "") for record in records for name in record.runtimes}
    runtimes = [name for name in RUNTIMES.values() if name in found]
    if runtimes and draft.data["containers"]["runtime"] == "none":
        draft.put(runtimes[0], "containers", "runtime", note="found on the nodes")
    facts = {key: {"source": VERIFIED, "as_of": day, "grade": "A"} for key in _GROUPS if key in draft.data}
    draft.put(facts, "facts")
    queues = ", ".join(one.queue for one in successful)
    draft.put("verified" if len(successful) == len(probe_results) else "draft", "status", note=f"jobs ran in {queues}")
    draft.put(day, "verified_on")
    draft.put(f"{user}, with sites learn --smoke", "verified_by")
    draft.remarks += map(_remark, successful)
    return faults


def _network(draft: ProfileDraft, records: Sequence[SmokeRecord]) -> None:
    """Interface between the nodes, the form of the rendezvous address, and the family of the network."""
    interfaces = {record.together.interface for record in records if record.together.connected}
    if len(interfaces) == 1 and (name := interfaces.pop()) not in {None, "", "lo"}:
        draft.put([name], "network", "interface", note="connected the nodes")
    if any(record.together.by == "address" for record in records):
        draft.put({"resolve": "ip"}, "network", "master", note="the first node was only reachable by address")
    kinds = {record.fabric for record in records}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        draft.put(kind, "fabric", "kind", note=f"`extends: [{kind}]` adds the usual settings for this network")


def _gpus(draft: ProfileDraft, successful: Sequence[ProbeResult]) -> list[str]:
    """GPU vendor and memory as seen by a process. Reports GPU counts that differ from the request."""
    faults = []
    for one in successful:
        name = draft.data["queues"][one.queue]["node_class"]
        node = draft.data["node_classes"][name]
        for record in one.records:
            count = record.allocated_gpus
            if node.get("gpus") and count is not None and count != str(node["gpus"]):
                faults.append(f"{one.queue}: a job got {count} GPUs on a node that has {node['gpus']}")
            if record.gpus:
                draft.put(f"{len(record.gpus)} {models(record)}", "node_classes", name, "about", note=VERIFIED)
                put_gpus(draft, record.gpus, name, VERIFIED)
    return faults


def _folders(draft: ProfileDraft, records: Sequence[SmokeRecord]) -> None:
    """Mark folders that are not visible on every node, which cannot hold runs."""
    paths = draft.data.get("paths", {})
    for name in [*paths]:
        visible = [record.together.folders.get(name) for record in records if record.together.folders is not None]
        if visible and all(visible):
            draft.notes["paths", name] = f"{draft.notes['paths', name]}; visible on all nodes of the jobs"
        else:
            paths[name] = {"path": paths[name], "note": "not visible or not writable on every node"}


def _internet(draft: ProfileDraft, records: Sequence[SmokeRecord]) -> None:
    answers = [record.internet for record in records if record.internet is not None]
    access = {answer.compute for answer in answers}
    if len(access) == 1:
        draft.put(access.pop(), "internet", "compute", note="tested from the nodes")
        if proxy := answers[0].proxy:
            draft.put(proxy, "internet", "proxy")
        if answers[0].needs_password:
            draft.remarks.append(
                "The proxy in https_proxy has a password. Name its address under internet.proxy, without a password."
            )


def _remark(one: ProbeResult) -> str:
    first = one.records[0]
    words = [f"{len(one.records)} nodes, Python {first.python.version if first.python else 'unknown'}"]
    together, pythons = first.together, (first.launcher_python, first.python)
    torch = next((python.torch for python in pythons if python is not None and python.torch), None)
    words.append(f"PyTorch {torch}" if torch else "no PyTorch without modules")
    words += [f"all-reduce with {together.all_reduce:g} GB/s"] if together.all_reduce else []
    return f"Measured in {one.queue}: {', '.join(words)}."
