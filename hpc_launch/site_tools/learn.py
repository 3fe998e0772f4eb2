"""Learn a site: query the login node, draft a profile, run jobs on the nodes and write the profile."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpc_launch.base.errors import Refused, SchedulerError, UsageError
from hpc_launch.base.files import write_atomic, write_output
from hpc_launch.base.user_dirs import config_folder, make_folder
from hpc_launch.job.units import parse_time
from hpc_launch.preflight.short_run import Context
from hpc_launch.prepare.prepare import prepare_job, this_machine
from hpc_launch.schedulers.scheduler import Scheduler, Submission
from hpc_launch.schedulers.slurm.query_cluster import Survey, survey
from hpc_launch.site_tools.draft_profile import LearnContext, ProfileDraft, draft, profile_name
from hpc_launch.site_tools.host_facts import inspect_login_node
from hpc_launch.site_tools.probe_jobs import ProbeRequest, ProbeResult, add_measurements, run_probe_jobs, shared_base
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
    with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
        profile, job = Path(folder, f"{draft.name}.yaml"), Path(folder, "job.yaml")
        write_atomic(profile, draft.text())
        job_keys = {"name": "dialect", "queue": queue, "nodes": 1, "time": "00:01:00", "launcher": "srun"}
        write_atomic(job, json.dumps({**job_keys, "command": ["true"]}))
        try:
            prepared_job = prepare_job(job, site=str(profile))
            scheduler.test_only(Submission(prepared_job.script, Path(folder), prepared_job.plan.name))
        except (Refused, SchedulerError) as error:
            return str(error)
    return None


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


def measure(learned: LearnedSite, path: Path, partitions: Sequence[str], patience_s: float, context: Context) -> None:
    """Run a two-node job in each partition with the profile in `path`, and add the measurements to the draft."""
    folders = {"home": os.path.expanduser("~")}
    for key in learned.draft.data.get("paths", {}):
        variable = learned.draft.data["paths"][key].removeprefix("${env.").removesuffix("}")
        folders[key] = os.environ.get(variable, "")
    base = shared_base(learned.draft.name)
    learned.probe_results = run_probe_jobs(path, requests(learned, partitions), folders, base, patience_s, context)
    learned.faults = add_measurements(learned.draft, learned.probe_results, learned.context.day, learned.context.user)


def requests(learned: LearnedSite, partitions: Sequence[str]) -> list[ProbeRequest]:
    """One queue for each type of node in each requested partition, by default in all partitions.

    Raises UsageError for a partition that the draft does not contain.
    """
    queues = learned.draft.data["queues"]
    partition_names = {queue["partition"] for queue in queues.values()}
    for name in partitions:
        if name not in partition_names:
            hint = f"available partitions: {', '.join(sorted(partition_names))}"
            raise UsageError(f"you have no access to a partition {name}", hint)
    cluster = []
    for name, queue in queues.items():
        if "qos" not in queue and (not partitions or queue["partition"] in partitions):
            row = queue["limits"][0]
            max_nodes = int(row["nodes"].rpartition("-")[2])
            cluster.append(ProbeRequest(name, min(max_nodes, 2), parse_time(row["time"]) if "time" in row else None))
    return cluster


def user_groups() -> frozenset[str]:
    """Names of this user's groups."""
    import grp

    found = set()
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            found.add(grp.getgrgid(number).gr_name)
    return frozenset(found)
