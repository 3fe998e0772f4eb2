"""Prepare an attempt: everything that goes to the run folder and to the scheduler."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from msgspec import structs

from hpc_launch.base.files import read_text
from hpc_launch.diagnose.node_health import BadNode, excluded_nodes
from hpc_launch.job.units import format_time
from hpc_launch.plan.driver_plan import SENTINEL_S
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.prepare.find_secrets import find_secrets, notify_secrets, secrets_of
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.runs.records.plan_record import PlanRecord, newest_plan, plan_record
from hpc_launch.runs.records.submission import Overrides
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.schedulers.scheduler import Scheduler, Submission, scheduler_for
from hpc_launch.sites.resolved import Resolved

MAX_CANDIDATES = 500
"""Nodes of which Slurm is asked whether it knows them; the worst come first."""
MOST_PER_AUTHOR = 100
"""Of these, so many that one author reported: names that do not exist would displace the others."""


def first_attempt(
    ready: PreparedJob, sets: Sequence[str], *, exclude: Sequence[str] = (), scheduler: str | None = None
) -> PreparedAttempt:
    """Prepare the first attempt of a new run, for the site's scheduler or the one named.

    Raises Refused where a secret is missing, also that of a webhook.
    """
    find_secrets(notify_secrets(ready.plan.notify))
    return prepare(ready, sets, exclude=exclude, scheduler=scheduler)


def start_estimate(ready: PreparedJob, scheduler: Scheduler) -> str:
    """The scheduler's estimate of when and where the job would start. Raises SubmitRefused, Unreachable."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
        return scheduler.test_only(Submission(ready.script, Path(folder), ready.plan.name))


def unhealthy_hosts(plan: LaunchPlan, avoided: Sequence[str]) -> tuple[str, ...]:
    """Those of a plan's hosts that node health excludes, where no scheduler chooses the nodes. `avoided`: already."""
    retry, names = plan.recovery, {host.name for host in plan.hosts}
    if not names:
        return ()
    reported = [
        one for one in _candidates(NodeHealthStore(plan.site, retry.ledger).standing(), ()) if one.node in names
    ]
    return excluded_nodes(reported, retry.site_hosts, retry.least_nodes, avoided)


def prepare(
    ready: PreparedJob,
    sets: Sequence[str],
    exclude: Sequence[str],
    scheduler: str | None = None,
    job_file: str | None = None,
    *,
    readmitted: Sequence[str] = (),
) -> PreparedAttempt:
    """Prepare an attempt of a checked job. `exclude`, `readmitted`: nodes that the run excludes or uses again."""
    loaded, place = ready.loaded, ready.loaded.resolved.place()
    plan = plan_record(
        ready.plan,
        sets=tuple(sets),
        excluded=tuple(exclude),
        readmitted=tuple(readmitted),
        job_folder=loaded.resolved.job_folder,
        job_file=job_file or (os.path.abspath(place.file) if place is not None else None),
    )
    again = attempt_of(plan, scheduler or ready.plan.submitted_to, ready.script, Path(ready.plan.runs_folder))
    merged = resolved_yaml(loaded.resolved)
    return replace(again, job_yaml=loaded.job_text, resolved_yaml=merged, site_yaml=loaded.site_text)


def attempt_of(plan: PlanRecord, scheduler: str, script: str, runs_folder: Path) -> PreparedAttempt:
    """An attempt by its plan and script, without the texts of a new run. Raises Refused where a secret is missing."""
    retry = plan.recovery or RetryPlan()
    unhealthy = _unhealthy(plan.site, retry, plan.excluded, plan.cluster) if scheduler == "slurm" else ()
    unhealthy = tuple(node for node in unhealthy if node not in plan.readmitted)
    # The option replaces the script's directive, so it must name those nodes too.
    nodes = dict.fromkeys([*retry.exclude, *plan.excluded, *unhealthy]) if plan.excluded or unhealthy else {}
    return PreparedAttempt(
        name=plan.name,
        site=plan.site,
        scheduler=scheduler,
        runs_folder=runs_folder,
        job_yaml="",
        resolved_yaml="",
        site_yaml="",
        script=script,
        plan=plan,
        options=(f"--exclude={','.join(nodes)}",) if nodes else (),
        overrides=Overrides(set=plan.sets, exclude=plan.excluded, readmitted=plan.readmitted, ledger=unhealthy),
        secrets=secrets_of(plan.notify, plan.secrets),
    )


def _unhealthy(site: str, plan: RetryPlan, exclude: Sequence[str], cluster: str | None) -> tuple[str, ...]:
    """The nodes that node health excludes from a new job of this plan. Asks Slurm only where there are any."""
    avoided = _candidates(NodeHealthStore(site, plan.ledger).standing(), plan.listed)
    if not avoided:
        return ()
    scheduler = scheduler_for("slurm", cluster)
    known = scheduler.nodes([one.node for one in avoided])  # sbatch refuses a job that excludes an unknown node
    size = scheduler.size(plan.partition) if known else None
    candidates = [one for one in avoided if one.node in known]
    return excluded_nodes(candidates, size, plan.least_nodes, [*plan.exclude, *exclude])


def _candidates(nodes: Iterable[BadNode], listed: Sequence[str]) -> list[BadNode]:
    """The worst nodes by reports, then those of the site's list; of each author and of the list only so many."""
    result: dict[str, BadNode] = {}
    by_author: Counter[str] = Counter()
    for one in nodes:
        authors = {note.by for note in one.notes}
        if one.avoided and any(by_author[author] < MOST_PER_AUTHOR for author in authors):
            by_author.update(authors)
            result[one.node] = one
    for node in listed[:MOST_PER_AUTHOR]:
        result.setdefault(node, BadNode(node, (), math.inf, avoided=True))
    return list(result.values())[:MAX_CANDIDATES]


def resolved_yaml(resolved: Resolved) -> str:
    """resolved.yaml: `job` (the merged values) and `origins` (the layer and place of each)."""
    origins = {".".join(map(str, path)): str(origin) for path, origin in resolved.merged.origins.items()}
    data = {"site": resolved.site.name, "job": resolved.merged.data, "origins": origins}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def with_sentinel(prepared: PreparedAttempt, plan: LaunchPlan) -> PreparedAttempt:
    """The attempt with a sentinel job, in its own queue where the site names none.

    Others wait for the run though it may fail or its node may die, and a job cannot know whether its own failure is
    final.
    """
    recovery = prepared.plan.recovery
    if prepared.scheduler != "slurm" or recovery is None or recovery.sentinel is not None:
        return prepared
    own = {name: plan.option(name) for name in ("partition", "qos", "account")}
    options = tuple(f"--{name}={value}" for name, value in own.items() if value)
    recovery = structs.replace(recovery, sentinel=(*options, f"--time={format_time(SENTINEL_S)}"))
    return replace(prepared, plan=structs.replace(prepared.plan, recovery=recovery))


def edited_since(run: RunFolder) -> str | None:
    """The job file that the run was submitted from, where it has changed since."""
    plan = newest_plan(run)
    if plan is None or plan.job_file is None or os.path.exists(run.stage_info):
        return None  # or its pipeline has the job file
    try:
        return plan.job_file if read_text(Path(plan.job_file)) != read_text(run.job_yaml) else None
    except (OSError, UnicodeDecodeError):
        return None
