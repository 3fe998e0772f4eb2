"""Learn a site: query the login node, draft a profile, run jobs on the nodes and write the profile."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import write_output
from hpc_launch.base.user_dirs import config_folder, make_folder
from hpc_launch.job.units import parse_time
from hpc_launch.prepare.detect_site import this_machine
from hpc_launch.schedulers.scheduler import Scheduler
from hpc_launch.schedulers.slurm.query_cluster import Survey, survey
from hpc_launch.site_tools.learning.draft_profile import LearnContext, ProfileDraft, can_do, draft, profile_name
from hpc_launch.site_tools.learning.gpu_request import choose_gpu_requests
from hpc_launch.site_tools.learning.login_node import inspect_login_node
from hpc_launch.site_tools.learning.measured_facts import add_measurements
from hpc_launch.site_tools.learning.probe_jobs import (
    ProbeContext,
    ProbeRequest,
    ProbeResult,
    run_probe_jobs,
    shared_base,
)
from hpc_launch.sites.this_machine import names


@dataclass
class LearnedSite:
    """Result: the draft, the survey it is based on, and errors on the nodes."""

    draft: ProfileDraft
    survey: Survey
    context: LearnContext
    probe_results: list[ProbeResult] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def learn(name: str | None, scheduler: Scheduler) -> LearnedSite:
    """Draft a profile of this cluster. `scheduler` tests whether it would accept the profile's jobs.

    Raises UsageError for an invalid name, Unreachable if Slurm is not installed or does not respond.
    """
    if name is not None and name != profile_name(name):
        raise UsageError(f"{name!r} is not a valid profile name", "use letters, digits, dots, dashes and underscores")
    user = names(os.environ)["user"]
    cluster = survey(user)
    context = LearnContext(user, user_groups(), this_machine().hosts[0], time.strftime("%Y-%m-%d"))
    profile_draft = draft(name or profile_name(cluster.name), cluster, inspect_login_node(os.environ), context)
    if not profile_draft.data["queues"]:
        raise UsageError(
            "you have no access to any partition of this cluster", "check `sinfo -a`, or ask for an account"
        )
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


def measure(
    learned: LearnedSite, path: Path, partitions: Sequence[str], patience_s: float, context: ProbeContext
) -> None:
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
            raise UsageError(
                f"you have no access to a partition {name}",
                f"available partitions: {', '.join(sorted(partition_names))}",
            )
    cluster = []
    for name, queue in queues.items():
        if "qos" not in queue and (not partitions or queue["partition"] in partitions):
            row = queue["limits"][0]
            max_nodes = int(row["nodes"].rpartition("-")[2])
            cluster.append(ProbeRequest(name, min(max_nodes, 2), parse_time(row["time"]) if "time" in row else None))
    return cluster


def summary(learned: LearnedSite) -> dict[str, object]:
    """Output of `sites learn --json`, except for the file name."""
    data = learned.draft.data
    return {
        "name": learned.draft.name,
        "status": data["status"],
        "slurm": learned.survey.version,
        "can": dict(can_do(learned.survey)),
        "node_classes": list(data["node_classes"]),
        "queues": list(data["queues"]),
        "accounts": list(learned.survey.accounting.accounts) if learned.survey.accounting else [],
        "unknown": data.get("unknown", []),
        "jobs": [{"queue": one.queue, "run": one.run, "fault": one.fault} for one in learned.probe_results],
        "faults": learned.faults,
    }


def user_groups() -> frozenset[str]:
    """Names of this user's groups."""
    import grp

    cluster = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            cluster.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(cluster)
