"""Learn a Slurm site: query the login node, draft a profile, and measure by small jobs on the nodes, one per queue."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import Refused, SchedulerError, UsageError
from hpc_launch.base.files import config_folder, make_folder, write_atomic, write_output
from hpc_launch.base.json_records import read_record
from hpc_launch.job.units import counted, format_time, parse_time
from hpc_launch.preflight.short_run import Context, own_job
from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import prepare_job, this_machine
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.status.wait_for_end import poll_until
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.runtimes.container_runtimes import BY_PROGRAM
from hpc_launch.schedulers.scheduler import Scheduler, Submission
from hpc_launch.schedulers.slurm.query_cluster import Survey, survey
from hpc_launch.service.poll import tracker_of
from hpc_launch.site_tools.draft_profile import LearnContext, ProfileDraft, draft, profile_name
from hpc_launch.site_tools.host_facts import SmokeRecord, common, inspect_login_node, models
from hpc_launch.sites.this_machine import names

REQUEST_FORMS = ("gpus-per-node", "gpus-per-node-type", "gres", "gres-type", "gpus", "none")


def choose_gpu_requests(draft: ProfileDraft, scheduler: Scheduler) -> None:
    """Test the GPU request of each node class with `sbatch --test-only`, then alternatives. Keep the first accepted
    one.

    If none is accepted, or sbatch does not respond, keep the original and note the error.
    """
    for name, node in draft.data["node_classes"].items():
        queue = next((key for key, one in draft.data["queues"].items() if one["node_class"] == name), None)
        if not node.get("gpus") or queue is None:
            continue
        first, path = node["gpu_request"], ("node_classes", name, "gpu_request")
        # A request with the GPU type keeps the type.
        typed, must = "gpu_type" in node, first.endswith("-type")
        others = [form for form in REQUEST_FORMS if form != first and (typed if form.endswith("-type") else not must)]
        faults = []
        for form in (first, *others):
            draft.put(form, *path)
            rejection = _rejection(draft, queue, scheduler)
            if rejection is None:
                result = "accepted by sbatch --test-only"
                break
            faults.append(rejection)
        else:
            draft.put(first, *path)
            result = f"sbatch --test-only failed: {faults[0]}"
        draft.notes[path] = f"{draft.notes.get(path, '')}; {result}".lstrip("; ")


def _rejection(draft: ProfileDraft, queue: str, scheduler: Scheduler) -> str | None:
    """Why sbatch would reject a job in the queue, or None if it accepts it."""
    job = {"name": "dialect", "queue": queue, "nodes": 1, "time": "00:01:00", "launcher": "srun", "command": ["true"]}
    with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
        profile = Path(folder, f"{draft.name}.yaml")
        write_atomic(profile, draft.text())
        try:
            prepared_job = prepare_job(own_job(job, folder), site=str(profile))
            scheduler.test_only(Submission(prepared_job.script, Path(folder), prepared_job.plan.name))
        except (Refused, SchedulerError) as error:
            return str(error)
    return None


@dataclass
class ProbeResult:
    """Result of a job: its run, the record of each node, and why it has none."""

    queue: str
    run: RunFolder | None = None
    records: tuple[SmokeRecord, ...] = ()
    fault: str | None = None


@dataclass
class LearnedSite:
    """Result: the draft, the survey it is based on, and errors on the nodes."""

    draft: ProfileDraft
    survey: Survey
    context: LearnContext
    probe_results: list[ProbeResult] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Output of `sites learn --json`, except for the file name."""
        data, accounting = self.draft.data, self.survey.accounting
        return {
            "name": self.draft.name,
            "status": data["status"],
            "slurm": self.survey.version,
            "node_classes": list(data["node_classes"]),
            "queues": list(data["queues"]),
            "accounts": list(accounting.accounts) if accounting else [],
            "unknown": data.get("unknown", []),
            "jobs": [
                {"queue": one.queue, "run": one.run.name if one.run else None, "fault": one.fault}
                for one in self.probe_results
            ],
            "faults": self.faults,
        }


def learn(name: str | None, scheduler: Scheduler) -> LearnedSite:
    """Draft a profile of this cluster. `scheduler` tests whether it would accept the profile's jobs.

    Raises UsageError for an invalid name, Unreachable if Slurm is not installed or does not respond.
    """
    user = names(os.environ)["user"]
    cluster = survey(user)
    context = LearnContext(user, user_groups(), this_machine().hosts[0], time.strftime("%Y-%m-%d"))
    profile_draft = draft(profile_name(name, cluster.name), cluster, inspect_login_node(os.environ), context)
    if not profile_draft.data["queues"]:
        hint = "check `sinfo -a`, or ask for an account"
        raise UsageError("you have no access to any partition of this cluster", hint)
    choose_gpu_requests(profile_draft, scheduler)
    return LearnedSite(profile_draft, cluster, context)


def target(name: str) -> Path:
    """Default file of a profile: among the user's own."""
    return config_folder() / "sites" / f"{name}.yaml"


def save(draft: ProfileDraft, path: Path) -> None:
    """Write the profile. Raises UsageError if that is not possible."""
    try:
        make_folder(path.parent)
        write_output(path, draft.text())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "use -o FILE to write another file") from error


TIME_S = 300
WITH_TORCH = (
    'python=$0; (cd / && "$0" -c "import torch") 2>/dev/null || python=python3; '
    'exec "$python" "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" smoke "$HPC_LAUNCH_ATTEMPT_DIR" --python "$0" "$@"'
)
"""Run the program with the interpreter of hpc-launch if that has PyTorch on the node, else with the node's own."""
REACH = ("github.com:443", "huggingface.co:443")
"""Internet hosts that a training needs. One reachable host is enough."""


def measure(learned: LearnedSite, path: Path, partitions: Sequence[str], patience_s: float, context: Context) -> None:
    """Run a job in each partition with the profile in `path`, all at the same time, and add what they measured to the
    draft. Jobs that have not ended after `patience_s` seconds are cancelled. Raises as `probe_jobs`."""
    jobs, end = probe_jobs(learned, partitions), time.monotonic() + patience_s
    results = learned.probe_results = []
    try:
        for job in jobs:
            results.append(_start(job, path, context))
        for result in results:
            if result.run is not None:
                _follow(result, result.run, max(0.0, end - time.monotonic()), context)
    finally:
        for result in results:
            if result.run is not None:
                with suppress(SchedulerError):
                    cancel_run(result.run, context.scheduler)
    learned.faults = add_measurements(learned.draft, results, learned.context.day, learned.context.user)


def probe_jobs(learned: LearnedSite, partitions: Sequence[str]) -> list[dict[str, Any]]:
    """A job of two nodes for each type of node in each requested partition, by default in all partitions.

    Raises UsageError for a partition that the draft does not contain.
    """
    data = learned.draft.data
    partition_names = {queue["partition"] for queue in data["queues"].values()}
    for name in partitions:
        if name not in partition_names:
            hint = f"available partitions: {', '.join(sorted(partition_names))}"
            raise UsageError(f"you have no access to a partition {name}", hint)
    command = ["sh", "-c", WITH_TORCH, sys.executable, "--folder", f"home={os.path.expanduser('~')}"]
    for key, value in data.get("paths", {}).items():
        command += ["--folder", f"{key}={os.environ.get(value.removeprefix('${env.').removesuffix('}'), '')}"]
    for target in REACH:
        command += ["--reach", target]
    jobs = []
    for name, queue in data["queues"].items():
        if "qos" not in queue and (not partitions or queue["partition"] in partitions):
            row = queue["limits"][0]
            longest = parse_time(row["time"]) if "time" in row else None
            jobs.append({
                "name": "smoke",
                "queue": name,
                "nodes": min(int(row["nodes"].rpartition("-")[2]), 2),
                "processes_per_node": 1,
                "time": format_time(min(TIME_S, longest or TIME_S)),
                "launcher": "srun",
                "command": [word.replace("${", "$${") for word in command],
                "code": "off",
                "retry": {"max_attempts": 1},
                "notify": None,
            })  # fmt: skip
    return jobs


def _start(job: dict[str, Any], profile: Path, context: Context) -> ProbeResult:
    queue = job["queue"]
    try:
        ready = prepare_job(own_job(job, "/"), site=str(profile))  # every node has that folder
        run, _, job_id = submit_new(first_attempt(ready, ()), context.scheduler, index=context.index)
    except (Refused, SchedulerError) as error:
        context.say(f"{queue}: {error}")
        return ProbeResult(queue, fault=str(error))
    context.say(f"{queue}: job {job_id} on {counted(job['nodes'], 'node')}")
    return ProbeResult(queue, run)


def _follow(result: ProbeResult, run: RunFolder, patience_s: float, context: Context) -> None:
    """Wait until the job has ended or is stuck, or the time is over, and read what its nodes wrote."""
    status = poll_until(tracker_of([run], context.index), run, lambda _: False, seconds=patience_s)
    over = status.final or status.state == "STUCK"
    if over:
        context.say(f"{result.queue}: {status.state}")
    paths = sorted(run.attempt(1).path.glob("rank-*.json"))
    result.records = tuple(record for path in paths if (record := read_record(path, SmokeRecord)) is not None)
    if status.state != "COMPLETED" or not result.records:
        reason = status.reason or "see its log"
        result.fault = f"{status.state}: {reason}" if over else f"timed out: {status.state}"


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
    found = {BY_PROGRAM.get(name, "") for record in records for name in record.runtimes}
    runtimes = [name for name in BY_PROGRAM.values() if name in found]
    if runtimes and draft.data["containers"]["runtime"] == "none":
        draft.put(runtimes[0], "containers", "runtime", note="found on the nodes")
    facts = {key: {"source": VERIFIED, "as_of": day, "grade": "A"} for key in _GROUPS if key in draft.data}
    draft.put(facts, "facts")
    queues = ", ".join(one.queue for one in successful)
    draft.put("verified" if len(successful) == len(probe_results) else "draft", "status", note=f"jobs ran in {queues}")
    draft.put(day, "verified_on")
    draft.put(f"{user}, with sites learn --smoke", "verified_by")
    for one in successful:
        first = one.records[0]
        words = [f"{len(one.records)} nodes, Python {first.python.version if first.python else 'unknown'}"]
        pythons = (first.launcher_python, first.python)
        torch = next((python.torch for python in pythons if python is not None and python.torch), None)
        words.append(f"PyTorch {torch}" if torch else "no PyTorch without modules")
        words += [f"all-reduce with {first.together.all_reduce:g} GB/s"] if first.together.all_reduce else []
        draft.remarks.append(f"Measured in {one.queue}: {', '.join(words)}.")
    return faults


def _network(draft: ProfileDraft, records: Sequence[SmokeRecord]) -> None:
    """Interface between the nodes, the form of the rendezvous address, and the family of the network."""
    interface = common(record.together.interface for record in records if record.together.connected)
    named = [interface] if interface not in {None, "", "lo"} else None
    draft.put(named, "network", "interface", note="connected the nodes")
    by_address = any(record.together.by == "address" for record in records)
    note = "the first node was only reachable by address"
    draft.put({"resolve": "ip"} if by_address else None, "network", "master", note=note)
    draft.put_fabric(common(record.fabric for record in records))


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
                draft.put_gpus(record.gpus, name, VERIFIED)
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
    access = common(answer.compute for answer in answers)
    if access is not None:
        draft.put(access, "internet", "compute", note="tested from the nodes")
        draft.put(answers[0].proxy, "internet", "proxy")
        if answers[0].needs_password:
            draft.remarks.append(
                "The proxy in https_proxy has a password. Name its address under internet.proxy, without a password."
            )


def user_groups() -> frozenset[str]:
    """Names of this user's groups."""
    import grp

    found = set()
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            found.add(grp.getgrgid(number).gr_name)
    return frozenset(found)
