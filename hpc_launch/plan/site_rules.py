"""Rules of a site beyond its hardware: budgets, counts, memory, whole nodes, launchers, where to submit from."""

from __future__ import annotations

import fnmatch

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.shell_text import UnknownName, interpolate, plain
from hpc_launch.job.units import format_time
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.site_context import check_names
from hpc_launch.sites.conditions import count_holds


def check_site(draft: PlanDraft, size: JobSize) -> None:
    """Add a finding for each rule of the site that the job breaks."""
    check_names(draft, size)
    _check_lifecycle(draft)
    _check_budget(draft, size)
    _check_counts(draft, size)
    _check_requests(draft, size)
    _check_launcher(draft)
    _check_submitter(draft)


def _check_lifecycle(draft: PlanDraft) -> None:
    site = draft.resolved.site
    state, after = site.lifecycle.state, site.lifecycle.successor
    if state not in ("retired", "retiring"):
        return
    when = f" on {site.lifecycle.retires_on}" if site.lifecycle.retires_on else ""
    message = f"site {site.name} {'was retired' if state == 'retired' else 'will be retired'}{when}"
    hint = f"use its successor, `{after}`" if after else "see the centre's pages for its successor"
    place = draft.resolved.place("site") if draft.resolved.job.site else draft.resolved.site_origin("lifecycle").place
    draft.fault_at(FindingCode.SYSTEM_RETIRED, message, place, hint, "error" if state == "retired" else "warning")


def _check_budget(draft: PlanDraft, size: JobSize) -> None:
    budget, nodes, time_s = size.queue.node_minutes, draft.resolved.job.held_nodes, size.time_s
    if budget is None or time_s is None or nodes * time_s <= budget * 60:
        return
    most = format_time(max(budget * 60 // nodes, 1))
    message = f"{nodes} nodes for {format_time(time_s)} exceed the {budget} node-minutes of queue `{size.queue_name}`"
    hint = f"request at most {most} with {nodes} nodes"
    draft.fault_at(FindingCode.NODE_MINUTES_OVER_LIMIT, message, size.time_origin.place, hint)


def _check_counts(draft: PlanDraft, size: JobSize) -> None:
    node, queue, job = size.node_class, size.queue, draft.resolved.job
    key = "gpus" if job.gpus is not None else "gpus_per_node"
    allowed = node.gpus_allowed
    if allowed is not None and size.gpus_per_node and size.gpus_per_node not in allowed:
        words = " or ".join(map(str, allowed))
        message = f"{size.gpus_per_node} GPUs per node requested; queue `{size.queue_name}` offers {words}"
        draft.fault(FindingCode.GPU_COUNT_NOT_OFFERED, message, (key,), f"request {words} per node")
    total = size.gpus_per_node * job.held_nodes
    if queue.gpus is not None and not count_holds(queue.gpus, total):
        message = f"{total} GPUs in total requested; queue `{size.queue_name}` accepts {queue.gpus}"
        draft.fault(
            FindingCode.GPU_COUNT_NOT_OFFERED, message, (key,), "request another number, or choose another queue"
        )
    most = queue.gpus_per_user
    if most is not None and total > most:
        message = f"{total} GPUs in total requested; queue `{size.queue_name}` allows {most} per user"
        draft.fault(FindingCode.GPU_COUNT_NOT_OFFERED, message, (key,), f"request at most {most}")


def _check_requests(draft: PlanDraft, size: JobSize) -> None:
    job, site, queue = draft.resolved.job, draft.resolved.site, size.queue
    if queue.memory == "forbidden" and job.memory is not None:
        message = f"queue `{size.queue_name}` of site {site.name} does not accept memory requests"
        draft.fault(
            FindingCode.MEMORY_NOT_ACCEPTED, message, ("memory",), "remove `memory`: it follows from the other requests"
        )
    if queue.exclusive == "forbidden" and job.sbatch.get("exclusive") not in (None, False):
        message = f"queue `{size.queue_name}` of site {site.name} does not accept `--exclusive`"
        draft.fault(
            FindingCode.EXCLUSIVE_NOT_ACCEPTED, message, ("sbatch", "exclusive"), "remove it, or choose another queue"
        )


def _check_launcher(draft: PlanDraft) -> None:
    site, name = draft.resolved.site, draft.resolved.job.launcher.name
    advice = site.launchers.get(name)
    if advice is None or advice.use not in ("discouraged", "forbidden"):
        return
    better = [other for other, said in site.launchers.items() if said.use == "recommended"]
    message = f"site {site.name} {'forbids' if advice.use == 'forbidden' else 'advises against'} the launcher `{name}`"
    hint = f"use `launcher: {better[0]}`" if better else "use another launcher"
    because = f"{message}: {advice.why}" if advice.why else message
    draft.fault(
        FindingCode.LAUNCHER_DISCOURAGED,
        because,
        ("launcher",),
        hint,
        "error" if advice.use == "forbidden" else "warning",
    )


def _check_submitter(draft: PlanDraft) -> None:
    scheduler, by = draft.resolved.site.scheduler, draft.resolved.submitter
    folders = []
    for pattern in scheduler.submit_from:
        try:
            folders.append(plain(interpolate(pattern, draft.resolved.names)) or "")
        except UnknownName:
            return
    if folders and by.folder and not any(_below(by.folder, folder) for folder in folders):
        message = (
            f"site {draft.resolved.site.name} accepts jobs only from {' and '.join(folders)}, and the "
            f"current folder is {by.folder}"
        )
        draft.fault(FindingCode.WRONG_SUBMIT_PLACE, message, (), "submit it from there", "warning")
    hosts = scheduler.submit_hosts
    if hosts and by.host and not any(fnmatch.fnmatchcase(by.host, pattern) for pattern in hosts):
        message = (
            f"site {draft.resolved.site.name} accepts jobs only from {' and '.join(hosts)}, and this host is {by.host}"
        )
        draft.fault(FindingCode.WRONG_SUBMIT_PLACE, message, (), "submit it from there", "warning")


def _below(folder: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(folder, pattern) or fnmatch.fnmatchcase(folder, f"{pattern.rstrip('/*')}/*")
