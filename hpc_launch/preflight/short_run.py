"""Levels of `doctor`, and the short runs that some of them need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, to_builtins

from hpc_launch.base.errors import Refused
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.status.wait_for_end import poll_until
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.schedulers.scheduler import Scheduler


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

    def as_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = to_builtins(self)
        return answer


POLL_S = 1.0


class Context(Struct, frozen=True):
    """What starts and follows short runs."""

    scheduler: Scheduler
    tracker_of: Callable[[RunFolder], RunTracker]
    say: Callable[[str], None]
    index: Index | None = None


def short_sets(plan: LaunchPlan, purpose: str) -> list[str]:
    """The `--set` options of every short run: a name of its own, one attempt, and no messages."""
    return [f"name={plan.name[:57]}-{purpose}", "retry.max_attempts=1", "notify=null"]


def prepare_short(level: str, job: Path, *, site: str | None, sets: Sequence[str]) -> PreparedJob | Level:
    """The short job; a level that is not checked where the site or the job refuses it."""
    try:
        return prepare_job(job, site=site, sets=sets)
    except Refused as refused:
        return Level(level, "not checked", tuple(finding.message for finding in refused.findings))


def ended(status: RunStatus) -> str:
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
        words = f"{status.state}{f' ({status.reason})' if status.reason else ''}"
        if said[-1:] != [words]:
            said.append(words)
            context.say(f"{run.name}: {words}")

    try:
        return run, poll_until(context.tracker_of(run), run, enough, POLL_S, on_poll=tell)
    finally:
        cancel_run(run, context.scheduler)
