"""Submit attempts of a sweep's points as few job arrays, as far as the limits of the queue allow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from hpc_launch.base.errors import SubmitRefused
from hpc_launch.base.files import write_atomic
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.submission import array_of
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.runs.submitting.submit_attempt import LOOKUP_S, Wait
from hpc_launch.runs.sweeps.array_chunks import chunks
from hpc_launch.runs.sweeps.submit_array import submit_array
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder
from hpc_launch.schedulers.scheduler import Scheduler
from hpc_launch.script.render_array import render_array
from hpc_launch.sites.queues import Queue

LIMIT_REACHED = "the limit of submitted jobs is reached"


class SweepRoom(Struct, frozen=True):
    """What bounds a submission of points."""

    points: int
    """How many may be submitted now."""
    queued: int
    """Jobs of the user in the queue, the one that asks included."""
    array_size: int
    at_once: int | None
    """How many may run at the same time."""


def room_for(sweep: SweepFolder, scheduler: Scheduler, first: PreparedJob) -> SweepRoom | None:
    """What may be submitted now of a sweep with jobs like this one; None without job arrays. Raises Unreachable."""
    room = scheduler.array_room(*(_option(first.plan, name) for name in ("account", "partition", "qos")))
    if room is None:
        return None
    queue, free, at_once = _queue(first), [len(sweep.record.points)], [sweep.record.limit]
    if room.more is not None:
        free.append(room.more)
    if queue is not None:
        at_once.append(queue.max_jobs)
        if queue.max_submitted is not None:
            free.append(max(0, queue.max_submitted - room.queued))
    together = min((one for one in at_once if one is not None), default=None)
    return SweepRoom(min(free), room.queued, room.max_array_size, together)


def limit_text(points: int) -> str:
    """Why the others are left."""
    return f"the limits accept {points} jobs at present"


def send_arrays(  # noqa: PLR0917 - the stages before
    sweep: SweepFolder,
    scheduler: Scheduler,
    room: SweepRoom,
    jobs: Mapping[int, PreparedJob],
    attempts: Mapping[int, PreparedAttempt],
    follows: Mapping[int, int] | None = None,
    *,
    index: Index | None = None,
    lookup_s: float = LOOKUP_S,
    wait: Wait | None = None,
    must: bool = False,
) -> tuple[list[str], str | None]:
    """Submit attempts of points as few arrays: the ids of their jobs, and why some are left.

    `follows`: the attempts that these follow. Raises what `submit_array` raises; SubmitRefused only with `must`, where
    nothing was submitted.
    """
    scripts = _array_scripts({number: jobs[number].plan for number in attempts})
    by_options: dict[tuple[str, ...], dict[int, str]] = {}
    for number, attempt in attempts.items():
        by_options.setdefault(attempt.options, {})[number] = scripts[number]
    job_ids: list[str] = []
    try:
        for own, some in by_options.items():
            for chunk in chunks(some, room.array_size):
                of_chunk = {number: attempts[number] for number in chunk.tasks.values()}
                options = (*own, *_after_others(sweep))
                job_id = submit_array(
                    sweep, chunk, of_chunk, scheduler, options, room.at_once, follows,
                    index=index, lookup_s=lookup_s, wait=wait,
                )  # fmt: skip
                job_ids += [job_id] if job_id is not None else []
                with suppress(OSError):
                    os.unlink(sweep.refused)
    except SubmitRefused as error:
        with suppress(OSError):
            write_atomic(sweep.refused, f"{error}\n")
        if must and not job_ids:
            raise
        return job_ids, str(error)
    return job_ids, None


def _after_others(sweep: SweepFolder) -> tuple[str, ...]:
    """With a limit, an array waits for those before it: Slurm's `%` counts each array by itself."""
    if sweep.record.limit is None:
        return ()
    files = [Reader().read(array) for array in sweep.arrays()]
    before = [array_of(one.job_id) for one in files if one.job_id is not None]
    return (f"--dependency=afterany:{':'.join(before)}",) if before else ()


def _queue(job: PreparedJob) -> Queue | None:
    site = job.loaded.resolved.site
    name = job.loaded.resolved.job.queue or site.default_queue or next(iter(site.queues), "")
    return site.queues.get(name)


def _array_scripts(plans: Mapping[int, LaunchPlan]) -> dict[int, str]:
    """The array script of each point. Most have the same."""
    known: dict[tuple[object, ...], str] = {}
    scripts = {}
    for number, plan in plans.items():
        key = (plan.around.login_shell, *((str(one), str(one.origin)) for one in plan.directives))
        if key not in known:
            known[key] = render_array(plan)
        scripts[number] = known[key]
    return scripts


def _option(plan: LaunchPlan, name: str) -> str | None:
    return next((one.value for one in plan.directives if one.option == name), None)
