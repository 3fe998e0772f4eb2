"""What is asked of Slurm: the `#SBATCH` lines, in the dialect of the site."""

from __future__ import annotations

import re

from hpc_launch.plan.draft import Draft
from hpc_launch.plan.shape import Shape
from hpc_launch.plan.types import Directive
from hpc_launch.spec.origin import Origin, rule
from hpc_launch.spec.units import format_memory, format_time
from hpc_launch.spec.values import Scalar

_OPTION = re.compile(r"[a-z][a-z0-9-]*\Z")
_REFUSED_IN_VALUE = re.compile(r"[^\x20-\x7e]|[\"'\\`#]")
OURS = {
    "job-name": "name",
    "nodes": "nodes",
    "time": "time",
    "output": "run_dir",
    "error": "run_dir",
    "ntasks": "processes_per_node",
    "ntasks-per-node": "processes_per_node",
    "requeue": None,
    "no-requeue": None,
    "open-mode": None,
    "signal": "checkpoint.signal_before",
    "wrap": None,
    "array": None,
    "parsable": None,
    "test-only": None,
    "wait": None,
    "no-kill": "nodes",
    "export": "env",
}
"""sbatch options that follow from other keys; the key to use in their place."""


def directives(draft: Draft, form: Shape) -> tuple[Directive, ...]:
    """All directives, a later layer's `sbatch:` key replacing what stands before it."""
    resolved = draft.resolved
    job, site = resolved.job, resolved.site
    queue_path = ("queues", form.queue_name)
    lines = [Directive("job-name", job.name, resolved.origin("name"))]

    def add(option: str, value: object, origin: Origin) -> None:
        if value is not None:
            lines.append(Directive(option, None if value is True else str(value), origin))

    add("partition", form.queue.partition, resolved.site_origin(*queue_path, "partition"))
    add("qos", form.queue.qos, resolved.site_origin(*queue_path, "qos"))
    add("account", job.account, resolved.origin("account"))
    nodes = f"{job.fewest_nodes}-{job.most_nodes}" if job.elastic else job.most_nodes
    add("nodes", nodes, resolved.origin("nodes"))
    if job.elastic:
        add("no-kill", True, rule("the job outlives a lost node"))
    each_process = job.launcher.name == "srun"
    tasks = form.processes_per_node if each_process else 1
    why = "one task a process" if each_process else f"one task a node: {job.launcher.name} starts the rest"
    if not job.elastic:  # with it Slurm gives the fewest nodes of a range and no more (seen with 22.05)
        add("ntasks-per-node", tasks, rule(why))
    if form.cpus_per_node is not None:
        share = form.cpus_per_node // tasks
        origin = form.cpus_origin if tasks == 1 else rule(f"{form.cpus_per_node} CPUs for {tasks} tasks")
        add("cpus-per-task", max(share, 1), origin)
    lines += _gpu_request(form)
    if form.memory is not None:
        add("mem", format_memory(form.memory), form.memory_origin)
    add("exclusive", form.queue.exclusive or None, resolved.site_origin(*queue_path, "exclusive"))
    if form.time_s is not None:
        add("time", format_time(form.time_s), form.time_origin)
    if job.checkpoint.signal_before is not None:
        add("signal", f"B:USR1@{job.checkpoint.signal_before}", resolved.origin("checkpoint", "signal_before"))
    add("exclude", ",".join(job.exclude) or None, resolved.origin("exclude"))
    requeue = site.scheduler.requeue == "scheduler"
    requeue_origin = resolved.site_origin("scheduler", "requeue") if requeue else rule("who retries is decided once")
    add("requeue" if requeue else "no-requeue", True, requeue_origin)
    add("open-mode", "append", rule("a requeue must not empty the log"))
    add("output", f"{job.name}-%j.out", rule("for a start by hand; `submit` names a file in the run folder"))
    for source, options in ((queue_path, form.queue.sbatch), ((), job.sbatch)):
        for option, value in options.items():
            path = (*source, "sbatch", option)
            origin = resolved.site_origin(*path) if source else resolved.origin(*path)
            lines = _extra(draft, lines, option, value, origin)
    _check_values(draft, lines)
    return tuple(lines)


def _gpu_request(form: Shape) -> list[Directive]:
    node, count = form.node_class, form.gpus_per_node
    if not count or node.gpu_request == "none":
        return []
    if node.gpu_request == "gpus-per-node":
        return [Directive("gpus-per-node", str(count), form.gpus_origin)]
    kind = f"gpu:{node.gpu_type}:" if node.gpu_request == "gres-type" and node.gpu_type else "gpu:"
    return [Directive("gres", f"{kind}{count}", form.gpus_origin)]


def _extra(draft: Draft, lines: list[Directive], option: str, value: Scalar, origin: Origin) -> list[Directive]:
    if not _OPTION.match(option):
        hint = "write it as after `--`: `mail-type`, `reservation`"
        draft.fault_at("HL410", f"`{option}` is not the long name of an sbatch option", origin.place, hint)
        return lines
    if option in OURS:
        use = f"use the key `{OURS[option]}`" if OURS[option] else "leave it out"
        draft.fault_at("HL411", f"`--{option}` is set by hpc-launch itself", origin.place, use)
        return lines
    kept = [line for line in lines if line.option != option]
    if value is None or value is False:
        return kept
    return [*kept, Directive(option, None if value is True else str(value), origin)]


def _check_values(draft: Draft, lines: list[Directive]) -> None:
    """sbatch reads directives with quoting rules of its own; what would need them is refused, not guessed."""
    for line in lines:
        if line.value is not None and _REFUSED_IN_VALUE.search(line.value):
            message = f"the value of `--{line.option}` cannot stand in an #SBATCH line"
            hint = "leave out quotes, backslashes, `#` and control characters"
            draft.fault_at("HL412", message, line.origin.place, hint)
