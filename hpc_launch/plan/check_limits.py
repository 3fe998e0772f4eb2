"""Limits that a plan must keep: the hardware of the node class, and the nodes and time that a queue accepts."""

from __future__ import annotations

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.units import format_time
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.sites.conditions import count_holds
from hpc_launch.sites.queues import LimitRow


def check_limits(draft: PlanDraft, size: JobSize) -> None:
    """Add a finding for each limit that the job exceeds."""
    _check_hardware(draft, size)
    _check_time(draft, size)
    _check_limits_known(draft, size)


def limit_row(size: JobSize, nodes: int) -> LimitRow | None:
    """The row of the queue's limits for a job with so many nodes."""
    gpus = size.gpus_per_node * nodes
    rows = size.queue.limits
    return next((row for row in rows if count_holds(row.nodes, nodes) and count_holds(row.gpus, gpus)), None)


def _check_hardware(draft: PlanDraft, size: JobSize) -> None:
    node, local = size.node_class, draft.resolved.site.scheduler.type == "local"
    a_node = f"per node requested, but a node of queue `{size.queue_name}` has"
    gpus, processes = size.gpus_per_node, size.processes_per_node
    if gpus > node.gpus:
        key = "gpus" if draft.resolved.job.gpus is not None else "gpus_per_node"
        hint = "request more nodes with fewer GPUs each"
        draft.fault(FindingCode.TOO_MANY_GPUS, f"{gpus} GPUs {a_node} {node.gpus}", (key,), hint)
    if size.cpus_per_node is not None and size.cpus_per_node > node.cpus and not local:
        message = f"{size.cpus_per_node} CPUs {a_node} {node.cpus}"
        draft.fault(FindingCode.TOO_MANY_CPUS, message, ("cpus_per_node",), "request fewer CPUs")
    if node.memory is not None and size.memory is not None and size.memory > node.memory and not local:
        message = f"{size.memory} MiB {a_node} {node.memory}"
        draft.fault(FindingCode.TOO_MUCH_MEMORY, message, ("memory",), "request less, or all of it with `memory: 0`")
    if gpus and processes % gpus and gpus % processes:
        message = f"{processes} processes cannot share {gpus} GPUs evenly"
        draft.fault(
            FindingCode.UNEVEN_PROCESSES, message, ("processes_per_node",), "use one process per GPU", "warning"
        )


def _check_time(draft: PlanDraft, size: JobSize) -> None:
    time_s, job = size.time_s, draft.resolved.job
    if time_s is None:
        return
    if time_s <= 0:
        draft.fault(FindingCode.WARNING_TOO_EARLY, "the time limit is 0", ("time",), "set the time that the job needs")
    lead = job.checkpoint.signal_before
    if lead is not None and lead >= time_s > 0:
        message = "the warning would be sent before the job starts"
        draft.fault(
            FindingCode.WARNING_TOO_EARLY, message, ("checkpoint", "signal_before"), "set it shorter than `time`"
        )
    rows, queue = size.queue.limits, f"queue `{size.queue_name}`"
    if not rows:
        return
    row = limit_row(size, job.held_nodes)
    if row is None:
        ranges = ", ".join(f"{row.nodes} ({row.gpus} GPUs)" if row.gpus else row.nodes for row in rows)
        hint = f"it accepts {ranges} nodes"
        held = f"{job.held_nodes} nodes" + (f" ({job.spares} of them spares)" if job.spares else "")
        key = "spares" if job.spares else "nodes"
        draft.fault(FindingCode.NODES_OUT_OF_LIMITS, f"{queue} does not accept {held}", (key,), hint)
    elif row.time is not None and time_s > row.time:
        asked, limit = format_time(time_s), format_time(row.time)
        nodes = "1 node" if job.held_nodes == 1 else f"{job.held_nodes} nodes"
        message = f"time {asked} exceeds the limit of {queue} for {nodes}, {limit}"
        hint = f"set `time` to {limit} or less, or choose another queue"
        draft.fault_at(FindingCode.TIME_OVER_LIMIT, message, size.time_origin.place, hint)


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
    bounded = any(counts is not None and not counts.endswith("-") for counts in ranges)
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
