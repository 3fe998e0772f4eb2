"""The levels of `doctor`: the job file, the queue, and the nodes, each from what the level before has proven.

`doctor --ladder`: the training itself, on one GPU, one node, two nodes, then as asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_launch.agent.check_host import writable
from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.base.findings import Finding
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.preflight.queue_checks import hosts_level, limits_level, option, reservations_level
from hpc_launch.preflight.short_run import Context, Level, ended, follow_short_run, prepare_short, short_sets
from hpc_launch.preflight.software import software_levels
from hpc_launch.prepare.attempts import start_estimate
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.collect_evidence import diagnose_attempt
from hpc_launch.runs.records.node_records import NodeCheckRecord, read_node_check
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.schedulers.scheduler import Scheduler

STEPS = 2
"""A training that has reported so many steps works: the first one may come from a checkpoint."""


def ladder(
    job: Path, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
) -> Iterator[Level]:
    """Run the levels in order; the first that fails is the last."""
    for name, changes in _levels(whole):
        level = _run_level(name, job, whole, context, site=site, sets=[*sets, *changes])
        yield level
        if level.state == "failed":
            return


def _levels(whole: PreparedJob) -> Iterator[tuple[str, list[str]]]:
    """The sizes below the whole job's, and the `--set` options that give them."""
    plan = whole.plan
    if plan.processes_per_node > 1:
        gpus = ["gpus_per_node=1"] if plan.gpus_per_node else []
        yield ("one GPU" if gpus else "one process"), ["nodes=1", "processes_per_node=1", *gpus]
    if plan.nodes > 1:
        yield "one node", ["nodes=1"]
    if plan.nodes > 2:
        yield "two nodes", ["nodes=2"]
    yield "whole job", []


def _run_level(
    name: str, job: Path, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
) -> Level:
    spec = whole.loaded.resolved.job
    short = [f"{key}={json.dumps(value)}" for key, value in spec.drill.set.items()]
    mine = [*short, *sets, *short_sets(whole.plan, "ladder")]
    prepared = prepare_short(name, job, site=site, sets=mine)
    if isinstance(prepared, Level):
        return prepared
    seen: set[int] = set()

    def works(status: RunStatus) -> bool:
        if status.progress.step is not None:
            seen.add(status.progress.step)
        return len(seen) >= STEPS

    context.say(f"{name}:")
    run, status = follow_short_run(prepared, mine, context, works)
    if status.state == "COMPLETED" or works(status):
        last = max(seen, default=None)
        words = f"the training reached step {last}" if last is not None else "the training ended well"
        return Level(name, "ok", (words,), run.name)
    diagnosis = diagnose_attempt(run.attempt(1))
    lines = [ended(status), diagnosis.advice]
    return Level(name, "failed", tuple(line for line in lines if line), run.name)


GIB = 2**30
LITTLE = GIB
"""Free space for run folders that is too little for the logs of a long run."""
CHECK_TIME = "00:10:00"


def job_level(prepared: PreparedJob) -> Level:
    """The job file, its site and its files. A job with errors never gets here: `prepare_job` refuses it."""
    plan = prepared.plan
    lines = [f"{plan.name} fits site {plan.site}: {plan.nodes} nodes x {plan.processes_per_node} processes"]
    lines += [f"warning: {finding.message}" for finding in prepared.warnings]
    folder = Path(plan.runs_folder)
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    disk = os.statvfs(existing)
    free, inodes = disk.f_bavail * disk.f_frsize, disk.f_favail
    lines.append(f"{free / GIB:.1f} GiB free for run folders in {existing}")
    full = free < LITTLE or (disk.f_files and inodes < 1000)
    written = writable(str(existing))  # a used-up quota shows only here
    if not written["ok"]:
        lines.append(str(written["text"]))
    return Level("job", "failed" if full or not written["ok"] else "ok", tuple(lines))


def refused_level(findings: Sequence[Finding]) -> Level:
    """A job file with errors."""
    return Level("job", "failed", tuple(str(finding) for finding in findings))


def static_levels(
    job: Path, prepared: PreparedJob, scheduler: Scheduler, site: str | None, sets: Sequence[str]
) -> Iterator[Level]:
    """What can be checked without starting a job."""
    yield job_level(prepared)
    size = job_size(ValueFiller(prepared.loaded.resolved, []))
    node = size.node_class if size is not None else None
    yield from software_levels(prepared, job, site, sets, node.arch if node is not None else None)
    if prepared.plan.scheduler == "slurm":
        yield limits_level(prepared.plan, scheduler, node.gpu_type if node is not None else None)
        yield reservations_level(prepared.plan, scheduler)
    if prepared.plan.hosts:
        yield hosts_level(prepared.plan)
    yield queue_level(prepared, scheduler)


def queue_level(prepared: PreparedJob, scheduler: Scheduler) -> Level:
    """When the job would start, and what the jobs in its queue wait for."""
    lines = []
    try:
        lines.append(start_estimate(prepared, scheduler))
    except SubmitRefused as error:
        return Level("queue", "failed", (str(error),))
    except Unreachable as error:
        return Level("queue", "not checked", (str(error),))
    partition = option(prepared.plan, "partition")
    reasons = scheduler.pending_reasons(partition)
    if reasons:
        parts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
        total = sum(reasons.values())
        lines.append(
            f"{total} {'job waits' if total == 1 else 'jobs wait'}{f' in {partition}' if partition else ''}: {parts}"
        )
    return Level("queue", "ok", tuple(lines))


def node_level(job: Path, prepared: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]) -> Level:
    """A short job of the same size that ends after the full node check."""
    if prepared.plan.scheduler == "local":
        return Level("nodes", "not checked", ("a run on this machine has no node check",))
    mine = [*sets, *short_sets(prepared.plan, "doctor"), "preflight=only", f"time={CHECK_TIME}"]
    short = prepare_short("nodes", job, site=site, sets=mine)
    if isinstance(short, Level):
        return short
    if short.plan.node_check is None:
        return Level(
            "nodes", "not checked", ("nothing but the training's own launcher can start a check on the nodes",)
        )
    run, status = follow_short_run(short, mine, context, lambda _: False)
    record = read_node_check(run.attempt(1))
    if record is None:
        return Level(
            "nodes", "failed" if status.final else "not checked", (f"the job ended {ended(status)}",), run.name
        )
    lines = tuple(_found(record))
    if status.state != "COMPLETED" and not record.bad:
        lines = (*lines, f"the job ended {ended(status)}", diagnose_attempt(run.attempt(1)).advice)
    return Level("nodes", "ok" if status.state == "COMPLETED" else "failed", lines, run.name)


def _found(record: NodeCheckRecord) -> Iterator[str]:
    for one in record.bad:
        yield f"{one.node}: {one.text}"
    for one in record.common:
        yield f"on {one.nodes} of {record.nodes} nodes: {one.text}"
    for check, reason in sorted(record.not_checked.items()):
        yield f"not checked: {check} ({reason})"
    for check, median in record.medians.items():
        yield f"median: {check} {median}"
    if not record.bad:
        yield f"{record.nodes} nodes passed in {record.seconds:.1f} s"
