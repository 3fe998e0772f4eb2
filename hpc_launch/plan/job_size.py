"""The size of the job: GPUs, processes, CPUs, memory and time per node, from the job and the node's hardware.

The parts of a site profile that apply to a job: facts for its conditions, the software stack and options.
"""

from __future__ import annotations

from typing import Any

from hpc_launch.base.findings import FindingCode
from hpc_launch.job.document import KeyPath, Origin, rule
from hpc_launch.job.units import counted, format_memory
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.sites.job_settings import ConditionFacts, SiteOption
from hpc_launch.sites.queues import NodeClass, Queue
from hpc_launch.sites.resolved import Resolved


def job_size(draft: PlanDraft) -> JobSize | None:
    """The size of the job; None with a finding if the queue is unknown."""
    resolved = draft.resolved
    found = _queue(draft)
    if found is None:
        return None
    queue_name, queue = found
    node_class = resolved.site.node_classes.get(queue.node_class)
    if node_class is None:
        message = f"queue `{queue_name}` has no node class `{queue.node_class}`"
        hint = f"use one of `node_classes`: {', '.join(resolved.site.node_classes)}"
        draft.site_fault(FindingCode.UNKNOWN_NODE_CLASS, message, ("queues", queue_name, "node_class"), hint)
        return None
    gpus, gpus_origin = _gpus(draft, node_class, queue)
    slots = _slots(draft, gpus)
    cpus, cpus_origin = _cpus(resolved, node_class, queue, gpus)
    memory, memory_origin = _memory(resolved, queue_name, queue, node_class, cpus=cpus, gpus=gpus)
    job = resolved.job
    time_s, time_origin = job.time, resolved.origin("time")
    if time_s is None:
        time_s, time_origin = queue.default_time, resolved.site_origin("queues", queue_name, "default_time")
    return JobSize(
        queue_name=queue_name,
        queue=queue,
        node_class=node_class,
        gpus_per_node=gpus,
        gpus_origin=gpus_origin,
        processes_per_node=job.processes_per_node or max(slots, default=0) or max(gpus, 1),
        cpus_per_node=cpus,
        cpus_origin=cpus_origin,
        memory=memory,
        memory_origin=memory_origin,
        time_s=time_s,
        time_origin=time_origin,
        slots=slots,
    )


def _queue(draft: PlanDraft) -> tuple[str, Queue] | None:
    job, site = draft.resolved.job, draft.resolved.site
    name = site.queue_of(job.queue)
    if name in site.queues:
        return name, site.queues[name]
    message = f"site {site.name} has no queue `{name}`"
    hint = f"use one of: {', '.join(site.queues)}" if site.queues else "add `queues:` to the site profile"
    if job.queue is not None:
        draft.fault(FindingCode.UNKNOWN_QUEUE, message, ("queue",), hint)
    else:
        draft.site_fault(FindingCode.UNKNOWN_QUEUE, message, ("default_queue",), hint)
    return None


def _gpus(draft: PlanDraft, node: NodeClass, queue: Queue) -> tuple[int, Origin]:
    resolved, job = draft.resolved, draft.resolved.job
    if job.gpus is not None:
        if job.gpus_per_node is not None:
            message, hint = "`gpus` and `gpus_per_node` are both set", "keep one of them"
            draft.fault(FindingCode.UNEVEN_GPUS, message, ("gpus",), hint)
        if job.gpus % job.max_nodes:
            message = f"{counted(job.gpus, 'GPU')} cannot be divided evenly over {job.max_nodes} nodes"
            draft.fault(FindingCode.UNEVEN_GPUS, message, ("gpus",), "set `gpus_per_node` instead")
        return job.gpus // job.max_nodes, resolved.origin("gpus")
    if job.gpus_per_node is not None:
        return job.gpus_per_node, resolved.origin("gpus_per_node")
    if resolved.hosts and node.gpus:
        return max(host.slots for host in resolved.hosts), rule("the most slots of a host")
    return node.gpus, resolved.site_origin("node_classes", queue.node_class, "gpus")


def _slots(draft: PlanDraft, gpus: int) -> tuple[int, ...]:
    """The number of processes of each host, with a finding for a host that has fewer slots than the job requests."""
    job, hosts = draft.resolved.job, draft.resolved.hosts
    asked = job.processes_per_node or (gpus if job.gpus is not None else job.gpus_per_node) or 0
    key = "processes_per_node" if job.processes_per_node else "gpus" if job.gpus is not None else "gpus_per_node"
    for host in hosts:
        if asked > host.slots:
            message = f"{asked} processes per node requested, but {host.name} has {host.slots} slots"
            hint = "request fewer, or omit the key to use all slots of each host"
            draft.fault(FindingCode.TOO_MANY_GPUS, message, (key,), hint)
            break
    return tuple(asked or host.slots for host in hosts)


def _cpus(resolved: Resolved, node: NodeClass, queue: Queue, gpus: int) -> tuple[int | None, Origin]:
    if resolved.job.cpus_per_node is not None:
        return resolved.job.cpus_per_node, resolved.origin("cpus_per_node")
    if node.gpus and 0 < gpus < node.gpus and not queue.whole_nodes:
        if node.cpus_per_gpu is not None:
            return gpus * node.cpus_per_gpu, rule(f"{counted(gpus, 'GPU')} with {node.cpus_per_gpu} CPUs each")
        return max(node.cpus * gpus // node.gpus, 1), rule(f"{gpus} of {node.gpus} GPUs' share of {node.cpus} CPUs")
    return node.cpus, resolved.site_origin("node_classes", queue.node_class, "cpus")


def _memory(
    resolved: Resolved, queue_name: str, queue: Queue, node: NodeClass, *, cpus: int | None, gpus: int
) -> tuple[int | None, Origin]:
    if resolved.job.memory is not None:
        return resolved.job.memory, resolved.origin("memory")
    origin = resolved.site_origin("queues", queue_name, "memory")
    if queue.memory == "per-gpu" and (each := node.memory_per_gpu) is not None and gpus:
        return each * gpus, rule(f"{counted(gpus, 'GPU')} with {format_memory(each)} each")
    if queue.memory == "all" or (queue.whole_nodes and queue.memory == "share"):
        return 0, origin
    if queue.memory == "share" and node.memory is not None and cpus is not None:
        if cpus >= node.cpus:
            return node.memory, resolved.site_origin("node_classes", queue.node_class, "memory")
        return node.memory * cpus // node.cpus, rule(f"{cpus} of {node.cpus} CPUs' share of the node's memory")
    return None, origin


def condition_facts(draft: PlanDraft, size: JobSize) -> ConditionFacts:
    """The facts that conditions are evaluated against."""
    resolved, job = draft.resolved, draft.resolved.job
    node, site = size.node_class, resolved.site
    stack = site.stacks.get(stack_name(draft, size) or "")
    versions = {**site.versions, **node.versions, **(stack.versions if stack else {})}
    if site.scheduler.version is not None:
        versions["slurm"] = site.scheduler.version
    if resolved.torch is not None:
        versions["torch"] = ".".join(map(str, resolved.torch))
    versions.update(job.environment.versions)
    return ConditionFacts(
        nodes=job.max_nodes,
        gpus_per_node=size.gpus_per_node,
        processes_per_node=size.processes_per_node,
        queue=size.queue_name,
        node_class=size.queue.node_class,
        arch=node.arch,
        vendor=node.gpu_vendor,
        launcher=job.launcher.name,
        runtime=(job.container.runtime or site.containers.runtime) if job.container else None,
        versions=versions,
    )


def stack_name(draft: PlanDraft, size: JobSize) -> str | None:
    """The software stack of the job; None in a container, unless the stack applies there too."""
    job, site = draft.resolved.job, draft.resolved.site
    name = job.environment.stack or size.queue.stack or size.node_class.stack
    stack = site.stacks.get(name) if name else None
    return name if stack is not None and (stack.in_container or job.container is None) else None


def profile_parts(draft: PlanDraft, size: JobSize) -> dict[KeyPath, Any]:
    """The node class, the queue and the options of the profile that apply to this job, the most general first."""
    parts: dict[KeyPath, Any] = {("node_classes", size.queue.node_class): size.node_class}
    parts["queues", size.queue_name] = size.queue
    return parts | {("options", name): option for name, option in selected_options(draft).items()}


def selected_options(draft: PlanDraft) -> dict[str, SiteOption]:
    """The site options that the job selects, or that a folder which it names requires."""
    job, site = draft.resolved.job, draft.resolved.site
    names = list(job.options)
    said = repr(job)
    for key, folder in site.paths.items():
        if folder.option is not None and f"${{paths.{key}}}" in said:
            names.append(folder.option)
    return {name: site.options[name] for name in names if name in site.options}


def check_names(draft: PlanDraft) -> None:
    """HL319 for an unknown option or software stack."""
    job, site = draft.resolved.job, draft.resolved.site
    asked: dict[KeyPath, tuple[str, str | None]] = {("environment", "stack"): ("stack", job.environment.stack)}
    asked |= {("options", at): ("option", name) for at, name in enumerate(job.options)}
    for path, (what, name) in asked.items():
        known = [*(site.stacks if what == "stack" else site.options)]
        if name is not None and name not in known:
            hint = f"use one of: {', '.join(known) or 'none defined'}"
            draft.fault(FindingCode.UNKNOWN_SITE_OPTION, f"site {site.name} has no {what} `{name}`", path, hint)


def srun_options(draft: PlanDraft, size: JobSize) -> tuple[str, ...]:
    """srun options of the site, the launcher, the node class, the queue and the selected options."""
    job, site = draft.resolved.job, draft.resolved.site
    advice = site.launchers.get(job.launcher.name)
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in site.srun.add.items()]
    options += advice.srun_options if advice is not None else []
    return (*options, *(one for part in profile_parts(draft, size).values() for one in part.srun_options))
