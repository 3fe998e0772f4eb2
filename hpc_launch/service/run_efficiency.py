"""What the newest attempt of a run used of what it requested, by the newest samples of its watchers."""

from __future__ import annotations

from itertools import islice
from statistics import fmean

from hpc_launch.estimate.efficiency import Efficiency, cpus_between, uses_by_gpu
from hpc_launch.performance.run_samples import MAX_NODES
from hpc_launch.performance.slow_training import attempt_remarks
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.node_records import watcher_samples
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.status.run_status import RunStatus


def run_efficiency(status: RunStatus) -> Efficiency:
    """The use of a run's newest attempt, as far as it is known. Never raises."""
    if not status.attempts:
        return Efficiency()
    last = status.attempts[-1]
    attempt, plan = AttemptFolder(last.folder), plan_of(AttemptFolder(last.folder)) or PlanRecord()
    nodes = [list(watcher_samples(path)) for _, path in islice(attempt.watcher_files(), MAX_NODES)]
    uses = [use for node in nodes for use in uses_by_gpu((gpu.index, gpu.util) for one in node for gpu in one.gpus)]
    cpus = [cpus_between(node[0].cpu_s, node[-1].cpu_s, node[-1].t - node[0].t) for node in nodes if len(node) > 1]
    policy, remarks = plan.recovery, attempt_remarks(attempt) if uses else ()
    asked = policy.memory or policy.node_memory if policy is not None and policy.memory is not None else None
    return Efficiency(
        gpu_use=fmean(map(fmean, uses)) / 100 if uses else None,
        gpus=len(uses),
        idle_gpus=sum(not any(use) for use in uses),
        memory=max((sum(sample.rss_mib.values()) / 1024 for node in nodes for sample in node), default=None),
        memory_requested=asked / 1024 if asked else None,
        cpus=sum(cpus) if cpus else None,
        cpus_requested=plan.cpus_per_node * len(cpus) if plan.cpus_per_node else None,
        time=last.ended - last.started if last.ended is not None and last.started is not None else None,
        time_requested=plan.time_limit_s,
        completed=status.state == "COMPLETED",
        cause=f"{remarks[0].text}: {remarks[0].todo}" if remarks else "",
    )
