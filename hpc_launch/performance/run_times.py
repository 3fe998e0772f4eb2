"""Where the wall time of a run went, from its records alone: all attempts together. Never raises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hpc_launch.performance.attempt_times import attempt_times
from hpc_launch.performance.step_curve import StepCurve
from hpc_launch.performance.time_account import AttemptTimes, TimeAccount, time_account
from hpc_launch.runs.checkpoint_files import newest_first, rule_of
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.records.watcher_records import log_growth
from hpc_launch.runs.status.run_status import RunStatus


@dataclass(frozen=True)
class RunTimes:
    """The account of a run's time and the step curves of its attempts, by number."""

    account: TimeAccount
    attempts: tuple[AttemptTimes, ...]
    curves: dict[int, StepCurve]


def run_times(status: RunStatus, now: float) -> RunTimes:
    """Where the wall time of a run went, by its records and the scheduler's answers in its status."""
    run, reader = RunFolder(status.folder), Reader()
    info = read_info(run)
    found: list[AttemptTimes] = []
    curves: dict[int, StepCurve] = {}
    states = {attempt.number: attempt for attempt in status.attempts}
    before: AttemptFiles | None = None
    furthest: int | None = None
    attempts = [reader.read(folder) for folder in run.attempts()]
    for at, files in enumerate(attempts):
        number, after = files.attempt.number, attempts[at + 1] if at + 1 < len(attempts) else None
        curve = _curve(files.attempt)
        times = attempt_times(files, states.get(number), curve, before=before, after=after)
        times = _caught_up(times, curve, furthest, found, files)
        furthest = max((step for step in (furthest, curve.last) if step is not None), default=None)
        found.append(times)
        curves[number] = curve
        before = files
    known = [time for times in found for time in _known(times)]
    begin = info.created if info is not None and info.created > 0 else min(known, default=now)
    begin = min(begin, now)
    end = now
    if status.final:
        end = min(now, max((_over(times) for times in found[-1:]), default=begin))
    account = time_account(found, begin, end, continues=status.state == "RETRYING")
    return RunTimes(account, tuple(found), curves)


def _over(times: AttemptTimes) -> float:
    """When an attempt of a run that is over was: its end, or the last that is known of it."""
    ends = [time for time in (times.ended, times.job_ended) if time is not None]
    return max(ends or _known(times), default=-math.inf)


def _known(times: AttemptTimes) -> list[float]:
    ends = (times.submitted, times.began, times.trained, times.failed, times.stopped, times.ended, times.job_ended)
    return [time for time in ends if time is not None]


def _curve(attempt: AttemptFolder) -> StepCurve:
    plan = plan_of(attempt) or PlanRecord()
    watched = next((path for number, path in attempt.watcher_files() if number == 0), None)
    growth, saves = log_growth(watched) if watched is not None else ([], [])
    with suppress(OSError):
        log = attempt.first_log.stat()
        growth += [(log.st_mtime, log.st_size)] if log.st_size else []
    return StepCurve(attempt, plan, growth, saves)


def _caught_up(
    times: AttemptTimes, curve: StepCurve, furthest: int | None, before: Sequence[AttemptTimes], files: AttemptFiles
) -> AttemptTimes:
    """Add when the attempt had repeated what an earlier one had done: by steps, else by the checkpoint it began from.

    Without steps it repeats for as long as the attempt before trained after that checkpoint.
    """
    if times.trained is None or not before:
        return times
    if curve.has_steps:
        if furthest is None or curve.last is None:
            return times
        return replace(times, caught_up=curve.reached(furthest, times.trained) if curve.last >= furthest else math.inf)
    lost = _trained_after_checkpoint(before[-1], files)
    return replace(times, caught_up=times.trained + lost) if lost is not None else times


def _trained_after_checkpoint(before: AttemptTimes, files: AttemptFiles) -> float | None:
    step = files.start.resumed_step if files.start is not None else None
    rule = rule_of(files.attempt.run)
    if before.trained is None or rule is None or step is None:
        return None
    saved = next((found.time for found in newest_first(rule) if found.step == step), None)
    stopped = min(
        (t for t in (before.failed, before.silent_since, before.stopped, before.ended) if t is not None), default=None
    )
    return max(0.0, stopped - max(saved, before.trained)) if saved is not None and stopped is not None else None
