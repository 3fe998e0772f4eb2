"""What a plan must meet on its site before anything is submitted: hardware, limits, accounts. Each rule has a code."""

from __future__ import annotations

import re

from hpc_launch.base.findings import Finding, Severity
from hpc_launch.plan.shape import Shape
from hpc_launch.sites.profile import LimitRow
from hpc_launch.sites.resolved import Resolved
from hpc_launch.spec.merge import Path as KeyPath
from hpc_launch.spec.units import format_time


def check(resolved: Resolved, form: Shape, findings: list[Finding]) -> None:
    """Add a finding for each rule that the job breaks."""

    def fault(code: str, message: str, path: KeyPath, hint: str, severity: Severity = "error") -> None:
        findings.append(Finding(code, message, resolved.place(*path), hint, severity))

    job, node, local = resolved.job, form.node_class, resolved.site.scheduler.type == "local"
    gpus_key: KeyPath = ("gpus",) if job.gpus is not None else ("gpus_per_node",)
    if form.gpus_per_node > node.gpus:
        fault("HL401", f"{form.gpus_per_node} GPUs on each node, but a node of queue `{form.queue_name}` has "
              f"{node.gpus}", gpus_key, "ask for more nodes with fewer GPUs on each")  # fmt: skip
    if form.cpus_per_node is not None and form.cpus_per_node > node.cpus and not local:
        fault("HL404", f"{form.cpus_per_node} CPUs on each node, but a node of queue `{form.queue_name}` has "
              f"{node.cpus}", ("cpus_per_node",), "ask for less")  # fmt: skip
    if node.memory is not None and form.memory is not None and form.memory > node.memory and not local:
        fault("HL405", f"{form.memory} MiB on each node, but a node of queue `{form.queue_name}` has {node.memory}",
              ("memory",), "ask for less, or for all of it: `memory: 0`")  # fmt: skip
    if (
        form.gpus_per_node
        and form.processes_per_node % form.gpus_per_node
        and form.gpus_per_node % form.processes_per_node
    ):
        fault("HL406", f"{form.processes_per_node} processes do not fit {form.gpus_per_node} GPUs evenly",
              ("processes_per_node",), "use one process a GPU", "warning")  # fmt: skip
    _check_time(resolved, form, findings)
    _check_account(resolved, findings)
    if local and job.launcher.name == "srun":
        fault("HL420", "the launcher `srun` needs Slurm", ("launcher",), "use `torchrun` on this site")
    first, last = resolved.site.network.ports
    if not 1024 <= first <= last < 32768:
        findings.append(Finding("HL305", f"ports {first} to {last} do not lie in 1024 to 32767",
                                resolved.site_origin("network", "ports").place,
                                "from 32768 on, outgoing connections take them"))  # fmt: skip
    if job.container is not None:
        fault("HL490", "containers are not supported by this version", ("container",), "use `environment:`")
    if job.retry.max_attempts > 1:
        fault("HL491", "`retry` is kept, but this version tries nothing again by itself", ("retry", "max_attempts"),
              "`hpc-launch resubmit RUN` makes the next attempt", "warning")  # fmt: skip


def _check_time(resolved: Resolved, form: Shape, findings: list[Finding]) -> None:
    time_s, job = form.time_s, resolved.job
    if time_s is None:
        return
    if time_s <= 0:
        findings.append(Finding("HL403", "the time limit is 0", resolved.place("time"), "say how long it may take"))
    lead = job.checkpoint.signal_before
    if lead is not None and lead >= time_s > 0:
        findings.append(Finding("HL403", "the warning would come before the start of the job",
                                resolved.place("checkpoint", "signal_before"), "make it shorter than `time`"))  # fmt: skip
    rows = form.queue.limits
    if not rows:
        return
    row = next((row for row in rows if _covers(row, job.nodes)), None)
    if row is None:
        ranges = ", ".join(row.nodes for row in rows)
        findings.append(Finding("HL407", f"queue `{form.queue_name}` has no place for {job.nodes} nodes",
                                resolved.place("nodes"), f"it takes {ranges} nodes"))  # fmt: skip
    elif time_s > row.time:
        findings.append(Finding(
            "HL402",
            f"time {format_time(time_s)} is over the limit of queue `{form.queue_name}` for {job.nodes} nodes, "
            f"{format_time(row.time)}",
            form.time_origin.place,
            f"set `time` to {format_time(row.time)} or less, or choose another queue",
        ))  # fmt: skip


def _covers(row: LimitRow, nodes: int) -> bool:
    first, dash, last = row.nodes.partition("-")
    if not dash:
        return nodes == int(first)
    return int(first) <= nodes and (not last or nodes <= int(last))


def _check_account(resolved: Resolved, findings: list[Finding]) -> None:
    rule, account = resolved.site.account, resolved.job.account
    if account is None:
        if rule.required:
            findings.append(Finding("HL303", f"site {resolved.site.name} wants an account", resolved.place("name"),
                                    "add `account:`, best in your user.yaml"))  # fmt: skip
    elif rule.pattern is not None and not re.fullmatch(rule.pattern, account):
        findings.append(Finding("HL303", f"account `{account}` does not look like one of site {resolved.site.name}",
                                resolved.place("account"), f"it has to match {rule.pattern}"))  # fmt: skip
