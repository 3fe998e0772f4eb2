"""Query runs, sweeps and pipelines, and do what is due: the verdict on an attempt that ended, the next attempt, the
points that are left, the next stages.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from hpc_launch.base.errors import NotOver
from hpc_launch.job.units import counted
from hpc_launch.retry.drivers import DriverOutcome, Drivers, Schedulers
from hpc_launch.runs.groups.group_folder import PipelineFolder, SweepFolder, as_pipeline, pipeline_of
from hpc_launch.runs.groups.pipeline_status import PipelineStatus, pipeline_status
from hpc_launch.runs.groups.sweep_status import SweepStatus, sweep_states, sweep_status
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.followed_run import REMEMBERED_S
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.status.wait_for_end import Show, pauses
from hpc_launch.service.listener import QUIET, Listener

TOGETHER = 2000
"""Runs whose files are in memory at a time."""

MOST_ROUNDS = 20
"""How often what is due is submitted at once: a stage may be due as soon as another one is refused."""


def is_group(run: RunFolder) -> bool:
    """Whether a run is a sweep, a pipeline or a part of one."""
    return run.sweep is not None or any(map(os.path.exists, (run.sweep_info, run.pipeline_info, run.stage_info)))


def tracker_of(runs: Iterable[RunFolder], index: Index) -> RunTracker:
    """A tracker of these runs that keeps final states in the index."""
    return RunTracker(runs, Schedulers().of, seen=index.seen)


def poll_runs(
    runs: Sequence[RunFolder], index: Index, listener: Listener = QUIET, *, drive: bool = True
) -> list[RunStatus]:
    """Query these runs and return their statuses in order.

    With `drive`, first does what is due. A failed run whose verdict has to wait is ENDING: another attempt may follow.
    The status of a sweep or a pipeline is that of its runs.
    """
    if not any(map(is_group, runs)):
        return _poll_plain(runs, index, listener, drive=drive)
    found = _poll_groups(runs, index, listener, drive=drive)
    result = [one if isinstance(one := found[run.name], RunStatus) else one.as_run() for run in runs]
    index.seen(result)
    return result


def poll_whole(
    run: RunFolder, index: Index, listener: Listener = QUIET, *, drive: bool = True
) -> RunStatus | SweepStatus | PipelineStatus:
    """The state of a run, or of a sweep or a pipeline with its parts."""
    if is_group(run):
        return _poll_groups([run], index, listener, drive=drive)[run.name]
    return _poll_plain([run], index, listener, drive=drive)[0]


def poll_sweep(run: RunFolder, index: Index, listener: Listener = QUIET, *, drive: bool = True) -> SweepStatus:
    """The state of a sweep with its points."""
    found = poll_whole(run, index, listener, drive=drive)
    return found if isinstance(found, SweepStatus) else sweep_status(SweepFolder(run), {})


def poll_pipeline(run: RunFolder, index: Index, listener: Listener = QUIET, *, drive: bool = True) -> PipelineStatus:
    """The state of a pipeline with its stages."""
    found = poll_whole(run, index, listener, drive=drive)
    return found if isinstance(found, PipelineStatus) else pipeline_status(PipelineFolder(run), {})


def _poll_plain(runs: Sequence[RunFolder], index: Index, listener: Listener, *, drive: bool) -> list[RunStatus]:
    """`poll_runs` for runs of which none is a sweep or a pipeline."""
    tracker = tracker_of(runs, index)
    with listener.doing("reading the run folders") as doing:
        statuses = tracker.poll(doing=doing)
    drivers = Drivers(tracker, index)
    due = [run for run in runs if drive and drivers.due(statuses[run.name])]
    if due:
        with listener.doing(f"advancing {counted(len(due), 'run')}"):
            outcomes = [drivers.drive(run) for run in due]
        for run, outcome in zip(due, outcomes, strict=True):
            if outcome.words and outcome.kind != "ended":
                listener.say(f"{run.name}: {outcome.words}")
        if any(outcome.kind != "nothing" for outcome in outcomes):
            statuses = tracker.poll()
        looked = [shown(statuses[run.name], one, tracker.now) for run, one in zip(due, outcomes, strict=True)]
        index.seen([status for status in looked if status.settled])
        statuses |= {status.run: status for status in looked}
    drivers.tell(runs if drive else ())
    return [statuses[run.name] for run in runs]


def _poll_groups(
    runs: Sequence[RunFolder], index: Index, listener: Listener, *, drive: bool
) -> dict[str, RunStatus | SweepStatus | PipelineStatus]:
    """The states of these runs, sweeps and pipelines by name, and of the parts of the groups that they belong to."""
    homes = [as_pipeline(run) or pipeline_of(run) for run in runs]
    pipelines = list({home.name: home for home in homes if home is not None}.values())
    others = [run for run in runs if as_pipeline(run) is None]

    def poll(polled: list[RunFolder]) -> dict[str, RunStatus]:
        found = _poll_plain(polled, index, listener, drive=drive)
        return {run.name: status for run, status in zip(polled, found, strict=True)}

    def advance_sweep(sweep: SweepFolder) -> None:
        if not drive or os.path.exists(sweep.submitted):
            return
        from hpc_launch.prepare.submit_sweep import advance

        progress = advance(sweep, Schedulers().of, index)
        if progress is not None and progress.job_ids:
            left = f"; {counted(progress.left, 'point is', 'points are')} left" if progress.left else ""
            listener.say(f"{sweep.name}: submitted job {', '.join(progress.job_ids)}{left}")

    found: dict[str, RunStatus | SweepStatus] = {}
    stamps: dict[str, int | None] = {}
    for _ in range(MOST_ROUNDS):
        stamps = {one.name: one.run.attempts_stamp() for one in pipelines}
        stages = [run for one in pipelines for run in one.stage_runs()]
        found = sweep_states([*others, *stages], poll, advance_sweep)
        outcomes: list[DriverOutcome] = []
        for one in pipelines if drive else ():
            if pipeline_status(one, found).may_be_due:
                from hpc_launch.retry.drive_groups import advance_pipeline

                outcomes += advance_pipeline(one, found, Schedulers().of, index)
        for outcome in outcomes:
            listener.say(outcome.words)
        if not any(outcome.kind in ("submitted", "ended") for outcome in outcomes):
            break
    return {**found, **{one.name: pipeline_status(one, found, stamps[one.name]) for one in pipelines}}


def shown(status: RunStatus, outcome: DriverOutcome, now: float) -> RunStatus:
    """The status once a driver looked.

    A run that it left alone long after the end stays as it is. A failed run whose verdict has to wait is ENDING.
    """
    ended = status.last.ended if status.last is not None else None
    if outcome.kind == "nothing" and ended is not None and now - ended > REMEMBERED_S:
        return replace(status, undecided=False)
    if outcome.kind != "waiting" or not status.undecided or status.state != "FAILED":
        return status
    reason = f"{status.reason}; {outcome.words}" if status.reason else outcome.words
    return replace(status, state="ENDING", reason=reason)


POLL_S = 3.0
"""Pause between two looks at sweeps and pipelines. The scheduler is asked less often, for all runs at once."""


class Look(NamedTuple):
    """One look at runs that are followed."""

    statuses: list[RunStatus]
    pause_s: float
    """How long to wait before the next look."""
    over: bool
    """Whether it is the last one: each run is over or can never start."""


def follow(
    runs: Sequence[RunFolder],
    index: Index,
    show: Show = lambda _: None,
    listener: Listener = QUIET,
    *,
    most_s: float | None = None,
) -> list[RunStatus]:
    """Follow runs, sweeps and pipelines until each is over or can never start, and return their last statuses.

    Raises NotOver after `most_s` seconds. A KeyboardInterrupt ends only the following.
    """
    end = math.inf if most_s is None else time.monotonic() + most_s
    for look in looks(runs, index, show, listener):
        if look.over:
            return look.statuses
        left = end - time.monotonic()
        if left <= 0:
            alive = ", ".join(f"{status.run} is {status.state}" for status in look.statuses if not status.final)
            raise NotOver(f"not over after {most_s:g} s: {alive}", "wait longer; a run goes on by itself")
        time.sleep(min(look.pause_s, left))
    return []


def looks(
    runs: Sequence[RunFolder], index: Index, show: Show = lambda _: None, listener: Listener = QUIET
) -> Iterator[Look]:
    """`follow` for callers that wait in their own way: look at the runs and do what is due, again and again."""
    over = not (groups := any(map(is_group, runs)))
    while not over:
        statuses = poll_runs(runs, index, listener)
        show(statuses)
        over = all((status.final and not status.undecided) or status.state == "STUCK" for status in statuses)
        yield Look(statuses, POLL_S, over)
    if groups:
        return
    tracker = tracker_of(runs, index)
    drivers = Drivers(tracker, index)

    def continues(status: RunStatus) -> bool:
        return drivers.drive(RunFolder(status.folder)).continues

    for pause_s in pauses(tracker, runs, show, continues=continues):
        drivers.drive_all(runs)
        yield Look([tracker.last[run.name] for run in runs], pause_s, over=False)
    drivers.tell(runs)
    yield Look([tracker.last[run.name] for run in runs], 0.0, over=True)
