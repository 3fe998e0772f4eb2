"""Levels of `doctor` that need a short run: the nodes, and the ladder, which is the training itself at growing size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from hpc_launch.base.errors import Refused
from hpc_launch.base.json_records import read_record
from hpc_launch.job.document import Document, yaml_text
from hpc_launch.job.job_file import GivenJob, JobSource
from hpc_launch.job.units import counted
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.runs.collect_evidence import diagnose_attempt
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.node_records import NodeCheckRecord
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.wait_for_end import poll_until
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.schedulers.scheduler import Scheduler
from hpc_launch.service.poll import tracker_of


class Level(Struct, frozen=True):
    """One level of checks and its result."""

    name: str
    state: Literal["ok", "failed", "not checked"]
    lines: tuple[str, ...]
    """What was found, one sentence each."""
    run: str | None = None
    """The run that it started."""
    values: dict[str, Any] | None = None
    """What it measured."""


class Context(Struct, frozen=True):
    """What starts and follows short runs."""

    scheduler: Scheduler
    say: Callable[[str], None]
    index: Index


def own_job(data: dict[str, Any], folder: str) -> GivenJob:
    """A job of hpc-launch itself, which is in no file. Relative paths start at `folder`."""
    return GivenJob(Document(data, text=yaml_text(data, {}, ())), folder)


def short_sets(plan: LaunchPlan, purpose: str) -> list[str]:
    """The `--set` options of every short run: a name of its own, one attempt, and no messages."""
    return [f"name={plan.name[:57]}-{purpose}", "retry.max_attempts=1", "notify=null"]


def prepare_short(level: str, job: JobSource, *, site: str | None, sets: Sequence[str]) -> PreparedJob | Level:
    """The short job; a level that is not checked where the site or the job refuses it."""
    try:
        return prepare_job(job, site=site, sets=sets)
    except Refused as refused:
        return Level(level, "not checked", tuple(finding.message for finding in refused.findings))


def state_of(status: RunStatus) -> str:
    """`FAILED: exit code 1`."""
    return f"{status.state}{f': {status.reason}' if status.reason else ''}"


def follow_short_run(
    prepared: PreparedJob,
    sets: Sequence[str],
    context: Context,
    enough: Callable[[RunStatus], bool],
    *,
    modules: Mapping[str, Path] | None = None,
) -> tuple[RunFolder, RunStatus]:
    """Submit, follow until the status is `enough`, final or stuck, and cancel what is left. Raises as a submission.

    `modules`: Python modules that the job imports, by the name of their file.
    """
    attempt = replace(first_attempt(prepared, sets), modules=modules or {})
    run, _, job_id = submit_new(attempt, context.scheduler, index=context.index)
    context.say(f"{run.name}: job {job_id}")
    said: list[str] = []

    def tell(status: RunStatus) -> None:
        if said[-1:] != [state_of(status)]:
            said.append(state_of(status))
            context.say(f"{run.name}: {state_of(status)}")

    try:
        return run, poll_until(tracker_of([run], context.index), run, enough, on_poll=tell)
    finally:
        cancel_run(run, context.scheduler)


STEPS = 2
"""A training that has reported so many steps works: the first one may come from a checkpoint."""


def ladder(
    job: JobSource, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
) -> Iterator[Level]:
    """Run the levels in order; the first that fails is the last."""
    for name, changes in sizes(whole):
        level = _run_level(name, job, whole, context, site=site, sets=[*sets, *changes])
        yield level
        if level.state == "failed":
            return


def sizes(whole: PreparedJob) -> Iterator[tuple[str, list[str]]]:
    """The sizes below the whole job's, and the `--set` options that give them: one node is each host in turn."""
    plan, excluded = whole.plan, list(whole.loaded.resolved.job.exclude)
    if plan.processes_per_node > 1:
        gpus = ["gpus_per_node=1"] if plan.gpus_per_node else []
        yield ("one GPU" if gpus else "one process"), ["nodes=1", "processes_per_node=1", *gpus]
    if plan.nodes > 1:
        yield "one node", ["nodes=1"]
    for host in plan.hosts[:-1]:
        excluded.append(host.name)
        yield "one node", ["nodes=1", f"exclude={json.dumps(excluded)}"]
    if plan.nodes > 2:
        yield "two nodes", ["nodes=2"]
    yield "whole job", []


def _run_level(
    name: str, job: JobSource, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
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
        where = f"{prepared.plan.hosts[0].name}: " if name == "one node" and prepared.plan.hosts else ""
        return Level(name, "ok", (where + words,), run.name)
    diagnosis = diagnose_attempt(run.attempt(1))
    lines = [state_of(status), diagnosis.advice]
    return Level(name, "failed", tuple(line for line in lines if line), run.name)


CHECK_TIME = "00:10:00"


def node_level(
    job: JobSource, prepared: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
) -> Level:
    """A short job of the same size that ends after the full node check."""
    if prepared.plan.scheduler == "local":
        return Level("nodes", "not checked", ("a run on this machine has no node check",))
    mine = [*sets, *short_sets(prepared.plan, "doctor"), "preflight=only", f"time={CHECK_TIME}"]
    short = prepare_short("nodes", job, site=site, sets=mine)
    if isinstance(short, Level):
        return short
    if short.plan.node_check is None:
        reason = "nothing but the training's own launcher can start a check on the nodes"
        return Level("nodes", "not checked", (reason,))
    run, status = follow_short_run(short, mine, context, lambda _: False)
    record = read_record(run.attempt(1).node_check, NodeCheckRecord)
    if record is None:
        return Level(
            "nodes", "failed" if status.final else "not checked", (f"the job ended {state_of(status)}",), run.name
        )
    lines = tuple(_found(record))
    if status.state != "COMPLETED" and not record.bad:
        lines = (*lines, f"the job ended {state_of(status)}", diagnose_attempt(run.attempt(1)).advice)
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
        yield f"{counted(record.nodes or 0, 'node')} passed in {record.seconds:.1f} s"
