"""Where the wall time of a run went, from its records alone: each attempt, and all together. Never raises."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice, pairwise

from hpc_launch.base.json_records import read_record
from hpc_launch.performance.time_account import AttemptTimes, TimeAccount, time_account
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.node_records import (
    NodeCheckRecord,
    last_event,
    log_growth,
    read_hang,
    start_events,
    watcher_events,
)
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.runs.status.startup_summary import LAST, MARKS, ORDER, history
from hpc_launch.runs.status.step_curve import StepCurve

MAX_NODES = 1024
START_NODES = 64
"""How many nodes show when a phase of the start ended."""
LOOKS = 64
"""At how many places of the log a step is looked for while a role is away."""
HANG_LOOK_S = 16.0
"""Seconds between two looks of the watcher for a hang, at most (agent/watch_hang.py)."""
NEVER_TRAINED = frozenset("import_error module_not_found config_error container_error".split())
"""Failure classes of attempts that ended in their start. Their log grew, too, without any step."""
BY_REQUEST = frozenset({"CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "REVOKED", "COMPLETED"})
"""States of jobs that did not end by a failure of theirs."""


def attempt_times(
    files: AttemptFiles,
    state: AttemptStatus | None,
    curve: StepCurve,
    *,
    before: AttemptFiles | None = None,
    after: AttemptFiles | None = None,
) -> AttemptTimes:
    """The times of an attempt, between those before and after it. Of a job with several, each counts by its script."""
    attempt, start, end, final = files.attempt, files.start, files.own_end, files.final
    continues = before is not None and files.same_start(before)
    if after is not None and after.same_start(files):
        final = None
    script_began = next((one.started for one in (start, end) if one is not None and one.started is not None), None)
    if files.void is not None:
        over = submitted = files.intent.time if files.intent is not None else None
        with suppress(OSError):
            over = attempt.claim.stat().st_mtime
        return AttemptTimes(attempt.number, submitted=submitted, ended=over)
    job_ended = final.ended if final is not None else None
    ended = end.ended if end is not None else None
    if state is not None and ended is None:
        ended = job_ended if job_ended is not None else state.ended
    # What is left of a job that its scheduler forgot, or that another attempt replaced.
    gone = state is not None and state.state in ("UNKNOWN", "REQUEUED", "VOID")
    if ended is None and gone:
        lives = (last_event(path) for _, path in islice(attempt.watcher_files(), MAX_NODES))
        known = [event.t for event in lives if event is not None and event.t is not None]
        ended = max([*known, *(time for time, _ in curve.growth[-1:])], default=None)
    job_began = final.started if final is not None else state.started if state is not None else None
    if continues and script_began is not None:
        job_began = None
    began = min((time for time in (job_began, script_began) if time is not None), default=None)
    intent_time = files.intent.time if files.intent is not None else None
    job_time = files.job.submitted if files.job is not None else None
    times = AttemptTimes(
        number=attempt.number,
        same_job=before is not None and files.job_id is not None and files.job_id == before.job_id,
        requeued=before is not None and files.job_id == before.job_id and not continues,
        # When the submission began: the intent is written before sbatch.
        submitted=next((time for time in (intent_time, job_time) if time is not None), None),
        began=began,
        phases=tuple(_phases(files, began)),
        growth=tuple(time for time, _ in curve.growth),
        outages=tuple(_outages(files, curve)),
        saves=curve.saves,
        ended=ended,
        job_ended=job_ended,
    )
    never = began is None or (state is not None and _never_trained(files, state, curve, times))
    trained = None if never else _trained(files, curve, times)
    times = replace(times, trained=trained)
    return _ending(files, state, curve, times) if ended is not None else _hanging(attempt, times)


def _never_trained(files: AttemptFiles, state: AttemptStatus, curve: StepCurve, times: AttemptTimes) -> bool:
    """Whether an attempt failed, and its recorded start shows no sign of a training. One line of output is no sign."""
    if state.failure_class in NEVER_TRAINED:
        return True
    failed = state.failure_class is not None and state.state not in BY_REQUEST
    recorded = (plan_of(files.attempt) or PlanRecord()).phases and not curve.has_steps
    signs = curve.saves or curve.steady or "first_step" in [phase for _, phase in times.phases[-1:]]
    return failed and recorded and not signs


def _trained(files: AttemptFiles, curve: StepCurve, times: AttemptTimes) -> float | None:
    """When the first step began. Without steps, when the start was over as far as its phases show."""
    only = len(curve.growth) == 1  # no watcher recorded how the log grew, or all of it at once
    if curve.has_steps:
        first = curve.first()
        if first is None or not only:
            return first
    last, phase = times.phases[-1] if times.phases else (times.began, "")
    if only or phase == "first_step":
        return last
    output = next((time for time in times.growth if last is None or time >= last), None)
    return output if files.output else None


def _launched(files: AttemptFiles) -> float | None:
    """When the script was done with node check and staging, and all roles were ready."""
    start = files.start
    launched = start.ended if start is not None and start.phase == "training" else None
    if launched is None or files.roles is None:
        return launched
    ready = files.roles.ready_at
    return None if ready is None else max(launched, ready)


def _outages(files: AttemptFiles, curve: StepCurve) -> Iterator[tuple[float, float]]:
    """When the training waited for a role that was started again: the longest time without a step while that was away,
    as the training may have something left to do."""
    for began, ended in [outage for role in files.roles.roles for outage in role.outages] if files.roles else ():
        until = math.inf if ended is None else ended
        yield max(pairwise([began, *_moments(curve, began, until), until]), key=lambda gap: gap[1] - gap[0])


def _moments(curve: StepCurve, began: float, until: float) -> Iterator[float]:
    """When the training made a step between these times, or wrote where steps are not known; not all of very many."""
    first, last = (bisect_right(curve.growth, (time, math.inf)) for time in (began, until))
    before = curve.step(first - 1) if first else None
    for at in range(first, last, (last - first) // LOOKS + 1):
        step = curve.step(at)
        if not curve.has_steps or (step is not None and step != before):
            yield curve.growth[at][0]
        before = step


def _phases(files: AttemptFiles, began: float | None) -> list[tuple[float, str]]:
    """The phases of a start, and when the slowest node entered each."""
    start, attempt = files.start, files.attempt
    if start is None or began is None:
        return []
    found: list[tuple[float, str]] = [(began, "preparation")]
    check = read_record(attempt.node_check, NodeCheckRecord)
    if check is not None and check.seconds and start.started is not None and math.isfinite(check.seconds):
        found += [(start.started, "node_check"), (start.started + max(0.0, check.seconds), "preparation")]
    plan = plan_of(attempt) or PlanRecord()
    nodes = [
        [(time, number, mark) for time, mark in history(start_events(path), plan.processes_of(number))]
        for number, path in islice(attempt.watcher_files(), START_NODES)
    ]
    marks = {number: "" for number, _ in islice(attempt.watcher_files(), START_NODES)}
    launched = _launched(files)
    if files.roles is not None and start.phase == "training" and start.ended is not None:
        found.append((start.ended, "roles"))
    if launched is not None:
        found.append((launched, "container_start" if plan.container else "start"))
    for time, number, mark in merge(*nodes) if launched is not None or files.roles is None else ():
        marks[number] = mark
        slowest = min(marks.values(), key=ORDER.__getitem__)
        phase = MARKS[slowest][0]
        phase = "container_start" if plan.container and phase == "start" else phase
        if found[-1][1] != phase and (slowest or not found):
            found.append((time if files.roles is None or launched is None else max(time, launched), phase))
        if slowest == LAST:
            break
    return found


def _hanging(attempt: AttemptFolder, times: AttemptTimes) -> AttemptTimes:
    """Add since when a hang lasted. The watcher looks at the logs every HANG_LOOK_S; the log itself is more precise."""
    hang = read_hang(attempt)
    if hang is None or hang.began is None:
        return times
    last = max((time for time in times.growth if time <= hang.began), default=None)
    since = last if last is not None and hang.began - last <= HANG_LOOK_S else hang.began
    return replace(times, silent_since=since, hang_found=hang.t)


def _ending(files: AttemptFiles, state: AttemptStatus | None, curve: StepCurve, times: AttemptTimes) -> AttemptTimes:
    """Add when the training stopped, and whether by itself, by request or by a failure."""
    times = _hanging(files.attempt, times)
    if times.hang_found is not None:
        return times
    end = files.own_end
    asked = [
        files.cancel.time if files.cancel is not None else None,
        end.ended if end is not None and end.signal else None,
    ]
    requested = min((time for time in asked if time is not None), default=None)
    name = state.state if state is not None else None
    good = end is not None and end.exit_code == 0
    if requested is not None or good or (end is not None and end.warned) or name in BY_REQUEST:
        if requested is None and curve.last is not None and len(curve.growth) > 1:
            return replace(times, stopped=curve.reached(curve.last))
        return replace(times, stopped=requested)
    return replace(times, failed=_when_failed(files, curve, times))


def _when_failed(files: AttemptFiles, curve: StepCurve, times: AttemptTimes) -> float | None:
    """When the first rank failed, or a node showed the last sign of life before the attempt was over."""
    fault = files.roles.failed if files.roles is not None else None
    if fault is not None and fault.time is not None:
        return fault.time
    attempt = files.attempt
    deaths: list[float] = []
    lives: list[float] = []
    for _, path in islice(attempt.watcher_files(), MAX_NODES):
        bad: float | None = None
        for event in watcher_events(path):
            if event.event == "ranks":
                bad = None  # the launcher started them again
            elif event.event == "gone" and (event.exit_code != 0 or event.signal) and bad is None:
                bad = event.t
        deaths += [bad] if bad is not None else []
        last = last_event(path)
        if last is not None and last.event != "end" and last.t is not None:
            lives.append(last.t)
    if deaths:
        return min(deaths)
    if lives:
        return min(lives)
    # Without a watcher's word, the log: it was written to until then.
    return max(times.growth, default=None) if times.trained is not None and len(curve.growth) else None


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
        if times.trained is not None and furthest is not None and curve.last is not None:
            # When it had repeated the steps that earlier ones had made.
            caught_up = curve.reached(furthest, times.trained) if curve.last >= furthest else math.inf
            times = replace(times, caught_up=caught_up)
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
