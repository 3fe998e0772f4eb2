"""Rules that a plan must meet before it is submitted: accounts, the rules of the site, and limits.

The limits are the hardware of the node class, and the nodes and time that a queue accepts.
"""

from __future__ import annotations

import fnmatch
import re

from hpc_launch.base.findings import FindingCode
from hpc_launch.base.patterns import compiled, matches_whole
from hpc_launch.job.shell_text import UnknownName, interpolate, plain
from hpc_launch.job.units import counted, format_time
from hpc_launch.plan.job_size import check_names
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.plan.sbatch_options import charged_account
from hpc_launch.sites.job_settings import count_holds
from hpc_launch.sites.queues import LimitRow

UNLIKELY_TIME_S = 7 * 86_400
UNLIKELY_MEMORY = 4 << 20
"""Where no limit is known: longer jobs and more MiB on a node are hardly meant."""


def limit_row(size: JobSize, nodes: int) -> LimitRow | None:
    """The row of the queue's limits for a job with so many nodes."""
    gpus = size.gpus(nodes)
    rows = size.queue.limits
    return next((row for row in rows if count_holds(row.nodes, nodes) and count_holds(row.gpus, gpus)), None)


def _check_hardware(draft: PlanDraft, size: JobSize) -> None:
    job, node, local = draft.resolved.job, size.node_class, draft.resolved.site.scheduler.kind == "local"
    a_node = f"per node requested, but a node of queue `{size.queue_name}` has"
    gpus, processes = size.gpus_per_node, size.processes_per_node
    alone = descriptor(job.launcher.name).tasks == "program"  # it may use all GPUs
    if gpus > node.gpus:
        key = "gpus" if job.gpus is not None else "gpus_per_node"
        hint = "request more nodes with fewer GPUs each"
        draft.fault(FindingCode.TOO_MANY_GPUS, f"{gpus} GPUs {a_node} {node.gpus}", (key,), hint)
    if size.cpus_per_node is not None and size.cpus_per_node > node.cpus and not local:
        message = f"{size.cpus_per_node} CPUs {a_node} {node.cpus}"
        draft.fault(FindingCode.TOO_MANY_CPUS, message, ("cpus_per_node",), "request fewer CPUs")
    if node.memory is not None and size.memory is not None and size.memory > node.memory and not local:
        message = f"{size.memory} MiB {a_node} {node.memory}"
        draft.fault(FindingCode.TOO_MUCH_MEMORY, message, ("memory",), "request less, or all of it with `memory: 0`")
    if gpus and processes % gpus and gpus % processes:
        message, hint = f"{processes} processes cannot share {gpus} GPUs evenly", "use one process per GPU"
        draft.fault(FindingCode.UNEVEN_PROCESSES, message, ("processes_per_node",), hint, "warning")
    elif 1 < processes < gpus and not (job.gpus or job.gpus_per_node or alone):
        message = f"{processes} processes leave {gpus - processes} of {gpus} GPUs of each node idle"
        hint = f"write `gpus_per_node: {processes}`, or `gpus_per_node: {gpus}` if each process uses several"
        draft.fault(FindingCode.UNEVEN_PROCESSES, message, ("processes_per_node",), hint, "warning")


def _check_time(draft: PlanDraft, size: JobSize) -> None:
    time_s, job = size.time_s, draft.resolved.job
    if time_s is None:
        return
    if time_s <= 0:
        draft.fault(FindingCode.WARNING_TOO_EARLY, "the time limit is 0", ("time",), "set the time that the job needs")
    lead = job.checkpoint.signal_before
    if lead is not None and lead >= time_s > 0:
        message, hint = "the warning would be sent before the job starts", "set it shorter than `time`"
        draft.fault(FindingCode.WARNING_TOO_EARLY, message, ("checkpoint", "signal_before"), hint)
    row = limit_row(size, job.held_nodes)
    if row is not None and row.time is not None and time_s > row.time:
        asked, limit = format_time(time_s), format_time(row.time)
        nodes = counted(job.held_nodes, "node")
        message = f"time {asked} exceeds the limit of queue `{size.queue_name}` for {nodes}, {limit}"
        hint = f"set `time` to {limit} or less, or choose another `queue`"
        draft.fault_at(FindingCode.TIME_OVER_LIMIT, message, size.time_origin.place, hint)


def _check_nodes(draft: PlanDraft, size: JobSize) -> None:
    """HL407 for a number of nodes that no row of the queue's limits has, or that the queue does not have."""
    job, queue = draft.resolved.job, size.queue
    too_many = queue.size is not None and job.held_nodes > queue.size
    if too_many or (queue.limits and limit_row(size, job.held_nodes) is None):
        ranges = ", ".join(f"{row.nodes} ({row.gpus} GPUs)" if row.gpus else row.nodes for row in queue.limits)
        hint = f"it has {queue.size} nodes" if too_many else f"it accepts {ranges} nodes"
        held = f"{job.held_nodes} nodes" + (f" ({job.spares} of them spares)" if job.spares else "")
        message, key = f"queue `{size.queue_name}` does not accept {held}", "spares" if job.spares else "nodes"
        draft.fault(FindingCode.NODES_OUT_OF_LIMITS, message, (key,), hint)


def _check_units(draft: PlanDraft, size: JobSize) -> None:
    """HL014 for a time in minutes or memory in MiB without a unit, where hours or GiB would be allowed as well."""
    job, written = draft.resolved.job, draft.resolved.merged.written
    time = written.get(("time",), "")
    number = time.partition(":")[0]
    if job.time is not None and number.isdecimal() and time.count(":") < 2:
        row = limit_row(size, job.held_nodes)
        longest = row.time if row is not None and row.time is not None else UNLIKELY_TIME_S
        if 0 < int(number) * 3600 <= longest:
            hint = f"write `{number}:00:00` for hours, `{number}m` for minutes"
            draft.fault(FindingCode.SURPRISING_UNIT, f"`time: {time}` is {number} minutes", ("time",), hint, "warning")
    memory = written.get(("memory",), "")
    if job.memory and memory.isdecimal() and job.memory << 10 <= (size.node_class.memory or UNLIKELY_MEMORY):
        message = f"`memory: {memory}` is {memory} MiB for a whole node"
        hint = f"write `{memory}G` for GiB, `{memory}M` for MiB"
        draft.fault(FindingCode.SURPRISING_UNIT, message, ("memory",), hint, "warning")


def _check_limits_known(draft: PlanDraft, size: JobSize) -> None:
    """HL409 if no known limit of the queue bounds the job. A limit that published pages omit may still exist."""
    resolved, queue = draft.resolved, size.queue
    if resolved.site.status != "documented" or resolved.site.recorded or resolved.site.scheduler.type != "slurm":
        return
    nodes = resolved.job.held_nodes
    row = limit_row(size, nodes)
    if queue.limits and row is None:
        return  # reported as HL407
    ranges = (row.nodes if row else None, row.gpus if row else None, queue.gpus)
    bounded = queue.size is not None or any(counts and not counts.endswith("-") for counts in ranges)
    unknown = []
    if nodes > 1 and not bounded and queue.node_minutes is None and queue.gpus_per_user is None:
        unknown.append(f"its {nodes} nodes")
    if size.time_s is not None and queue.node_minutes is None and (row is None or row.time is None):
        unknown.append(f"its time limit of {format_time(size.time_s)}")
    if unknown:
        message = f"queue `{size.queue_name}` has no known limit, so that {' and '.join(unknown)} cannot be checked"
        url = f" ({resolved.site.url})" if resolved.site.url else ""
        hint = f"compare with the site's documentation{url}, or add `limits:` to the profile"
        draft.fault(FindingCode.LIMIT_UNKNOWN, message, ("nodes",), hint, "warning")


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
    total = size.gpus(job.held_nodes)
    if queue.gpus is not None and not count_holds(queue.gpus, total):
        message = f"{total} GPUs in total requested; queue `{size.queue_name}` accepts {queue.gpus}"
        hint = "request another number, or choose another `queue`"
        draft.fault(FindingCode.GPU_COUNT_NOT_OFFERED, message, (key,), hint)
    most = queue.gpus_per_user
    if most is not None and total > most:
        message = f"{total} GPUs in total requested; queue `{size.queue_name}` allows {most} per user"
        draft.fault(FindingCode.GPU_COUNT_NOT_OFFERED, message, (key,), f"request at most {most}")


def _check_requests(draft: PlanDraft, size: JobSize) -> None:
    job, site, queue = draft.resolved.job, draft.resolved.site, size.queue
    if queue.memory == "forbidden" and job.memory is not None:
        message = f"queue `{size.queue_name}` of site {site.name} does not accept memory requests"
        hint = "remove `memory`: it follows from the other requests"
        draft.fault(FindingCode.MEMORY_NOT_ACCEPTED, message, ("memory",), hint)
    if queue.exclusive == "forbidden" and job.sbatch.get("exclusive") not in (None, False):
        message = f"queue `{size.queue_name}` of site {site.name} does not accept `--exclusive`"
        hint = "remove it, or choose another `queue`"
        draft.fault(FindingCode.EXCLUSIVE_NOT_ACCEPTED, message, ("sbatch", "exclusive"), hint)


def _check_launcher(draft: PlanDraft) -> None:
    site, name = draft.resolved.site, draft.resolved.job.launcher.name
    advice = site.launchers.get(name)
    if advice is None or advice.use not in ("discouraged", "forbidden"):
        return
    better = [other for other, said in site.launchers.items() if said.use == "recommended"]
    forbidden = advice.use == "forbidden"
    message = f"site {site.name} {'forbids' if forbidden else 'advises against'} the launcher `{name}`"
    message += f": {advice.why}" if advice.why else ""
    hint = f"use `launcher: {better[0]}`" if better else "use another launcher"
    code = FindingCode.LAUNCHER_DISCOURAGED
    draft.fault(code, message, ("launcher",), hint, "error" if forbidden else "warning")


def _check_submitter(draft: PlanDraft) -> None:
    site, by = draft.resolved.site, draft.resolved.submitter
    try:
        folders = [plain(interpolate(text, draft.resolved.names)) or "" for text in site.scheduler.submit_from]
    except UnknownName:
        folders = []
    hosts, wrong = site.scheduler.submit_hosts, None
    allowed = [pattern for folder in folders for pattern in (folder, f"{folder.rstrip('/*')}/*")]
    if folders and by.folder and not any(fnmatch.fnmatchcase(by.folder, pattern) for pattern in allowed):
        wrong = f"{' and '.join(folders)}, and the current folder is {by.folder}"
    elif hosts and by.host and not any(fnmatch.fnmatchcase(by.host, pattern) for pattern in hosts):
        wrong = f"{' and '.join(hosts)}, and this host is {by.host}"
    if wrong is not None:
        message = f"site {site.name} accepts jobs only from {wrong}"
        draft.fault(FindingCode.WRONG_SUBMIT_PLACE, message, (), "submit it from there", "warning")


MOST_LOCAL_PROCESSES = 256


def check(draft: PlanDraft, size: JobSize) -> None:
    """Add a finding for each rule that the job breaks."""
    _check_hardware(draft, size)
    _check_nodes(draft, size)
    _check_time(draft, size)
    _check_units(draft, size)
    _check_limits_known(draft, size)
    _check_account(draft, size)
    _check_this_machine(draft, size)
    _check_ports(draft)
    check_names(draft)
    _check_lifecycle(draft)
    _check_budget(draft, size)
    _check_counts(draft, size)
    _check_requests(draft, size)
    _check_launcher(draft)
    _check_submitter(draft)
    _check_patterns(draft)


def _check_account(draft: PlanDraft, size: JobSize) -> None:
    site = draft.resolved.site
    account, _ = charged_account(draft, size)
    pattern, find = site.account.pattern, site.account.find
    fault = _fault_of(pattern) if pattern is not None else None
    if account is None:
        if site.account.required:
            hint = "add `account:`, preferably in your user.yaml"
            hint = f"{hint}; to find your account: {find}" if find else hint
            draft.fault(FindingCode.INVALID_ACCOUNT, f"site {site.name} requires an account", ("name",), hint)
    elif fault is not None:
        message = f"`{pattern}` is not a valid regular expression: {fault}"
        draft.site_fault(FindingCode.INVALID_ACCOUNT_PATTERN, message, ("account", "pattern"), "fix or remove it")
    elif pattern is not None and not matches_whole(pattern, account):
        message = f"account `{account}` does not match the accounts of site {site.name}"
        draft.fault(FindingCode.INVALID_ACCOUNT, message, ("account",), f"use an account that matches {pattern}")


def _check_this_machine(draft: PlanDraft, size: JobSize) -> None:
    launcher = draft.resolved.job.launcher.name
    if draft.resolved.site.scheduler.kind != "local":
        return
    if descriptor(launcher).needs_step:
        message, hint = f"the launcher `{launcher}` requires Slurm, or hosts that ssh reaches", "use `torchrun` here"
        draft.fault(FindingCode.LAUNCHER_NEEDS_SLURM, message, ("launcher",), hint)
    processes = draft.resolved.job.max_nodes * size.processes_per_node
    if processes > MOST_LOCAL_PROCESSES:
        message = f"{processes} processes are too many for this machine"
        hint = f"use at most {MOST_LOCAL_PROCESSES} processes"
        draft.fault(FindingCode.TOO_MANY_LOCAL_PROCESSES, message, ("nodes",), hint)


def _check_ports(draft: PlanDraft) -> None:
    first, last = draft.resolved.site.network.ports
    if not 1024 <= first <= last < 32768:
        message = f"ports {first} to {last} are not within 1024 to 32767"
        hint = "use lower ports: outgoing connections use those from 32768 on"
        draft.site_fault(FindingCode.INVALID_PORT_RANGE, message, ("network", "ports"), hint)


def _check_patterns(draft: PlanDraft) -> None:
    job = draft.resolved.job
    named = [("progress", key, getattr(job.progress, key)) for key in ("step", "loss")]
    named += [("sweep", "metric", job.sweep.metric)] if job.sweep is not None else []
    for parent, key, pattern in named:
        fault = _fault_of(pattern) if pattern is not None else None
        if fault is None and pattern is not None and compiled(pattern).groups == 0:
            fault = "it has no group"
        if fault is not None:
            message = f"`{pattern}` cannot extract the {key} from a line: {fault}"
            hint = r"write a pattern such as 'step (\d+)/(\d+)' or 'loss ([\d.]+)'"
            draft.fault(FindingCode.INVALID_PROGRESS_PATTERN, message, (parent, key), hint)


def _fault_of(pattern: str) -> str | None:
    try:
        compiled(pattern)
    except re.error as error:
        return str(error)
    return None
