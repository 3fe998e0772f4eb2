"""The state of a pipeline by those of its stages and their runs, and what is due. Nothing of it is on record."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from hpc_launch.base.json_records import read_record
from hpc_launch.runs.groups.group_folder import PipelineFolder, StageRecord, point_number
from hpc_launch.runs.groups.stage_inputs import DueRun, checkpoints_for
from hpc_launch.runs.groups.sweep_status import SweepStatus
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import RETRY_S, Reader
from hpc_launch.runs.records.submission import never_submitted, was_refused
from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.run_status import FINAL_RUN_STATES, STATE_ORDER, RunStatus, group_status

Found = Mapping[str, RunStatus | SweepStatus]
"""The states of runs and sweeps by name."""


class StageRefusal(Struct, frozen=True, kw_only=True):
    """refused-STAGE: why the job of a stage could not be prepared."""

    reason: str = ""
    final: bool = False
    """Whether no driver tries again, until a user resubmits the stage."""


@dataclass(frozen=True)
class StageStatus:
    """A stage now. `state` is that of its runs; PENDING while it waits for others."""

    stage: StageRecord
    state: str
    reason: str | None = None
    runs: tuple[RunStatus, ...] = ()
    sweep: SweepStatus | None = None
    over: bool = False
    """Whether only a user can change it."""
    needed: bool = True
    """False for a stage that is for another outcome of those before it."""
    due: tuple[DueRun, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Its part of `status PIPELINE --json`."""
        stage = self.stage
        return {
            "stage": stage.name,
            "after": dict(stage.after),
            "on": stage.on,
            "each": stage.each,
            "state": self.state,
            "reason": self.reason,
            "needed": self.needed,
            "runs": [one.as_json(attempts=False) | {"attempts": len(one.attempts)} for one in self.runs],
        }


class StageStates:
    """The states of a pipeline's stages by those of its runs. `decide`: as for `checkpoints_for`."""

    def __init__(self, pipeline: PipelineFolder, found: Found, *, decide: bool) -> None:
        self.pipeline, self.found, self.decide = pipeline, found, decide
        self.ended = os.path.exists(pipeline.cancel)
        self.known: dict[str, StageStatus] = {}

    def status(self, name: str) -> StageStatus:
        """The state of a stage, after those that it waits for."""
        if name not in self.known:
            stage = self.pipeline.stage(name) or StageRecord(name=name)
            self.known[name] = StageStatus(stage, "UNKNOWN", "it waits for itself", over=True)  # in a file by hand
            self.known[name] = self._of(stage) if stage.target is None else self._of_several(stage)
        return self.known[name]

    def _of(self, stage: StageRecord) -> StageStatus:
        run = self.pipeline.stage_run(stage.name)
        found = self.found.get(run.name)
        if isinstance(found, SweepStatus):
            one = found.as_run()
            over = one.state == "COMPLETED" or (one.final and not one.undecided and _is_current(found))
            return StageStatus(stage, one.state, one.reason, (one,), found, over=over)
        if found is not None and _is_newer(run, found):
            return StageStatus(stage, "SUBMITTING", "another process submits it", (found,))
        again = _submit_again(run) if found is not None else "yes"
        if found is not None and again == "later":
            return StageStatus(stage, "PENDING", found.reason, (found,))
        if found is not None and found.attempts and again == "no":
            over = found.final and not found.undecided
            return StageStatus(stage, found.state, found.reason, (found,), over=over)
        refusal = read_record(self.pipeline.refused(stage.name), StageRefusal)
        return self._closed(stage) or StageStatus(
            stage, "SUBMITTING", (refusal.reason if refusal else "") or "due now", due=(DueRun(stage, _last(found)),)
        )

    def _of_several(self, stage: StageRecord) -> StageStatus:
        folders = self.pipeline.runs(stage.name)
        statuses = {key: one for key, run in folders.items() if isinstance(one := self.found.get(run.name), RunStatus)}
        again = {
            key: "later" if _is_newer(folders[key], one) else _submit_again(folders[key])
            for key, one in statuses.items()
        }
        begun = {key: one for key, one in statuses.items() if one.attempts and again[key] == "no"}
        target = self.status(stage.target or "")
        closed = self._closed(stage)
        if closed is not None and not begun:
            return closed
        due: list[DueRun] = []
        refusals: list[str] = []
        for run in self._wanted(stage, target, statuses) if closed is None else ():
            if run.key not in begun and again.get(run.key or "") != "later":
                refusal = read_record(self.pipeline.refused(stage.name, run.key), StageRefusal)
                if refusal is not None and refusal.final:
                    refusals.append(refusal.reason)
                else:
                    due.append(run)
        counts = Counter(one.state for one in begun.values()) + Counter({"STOPPED": len(refusals)})
        states = [name for name in STATE_ORDER if counts[name]]
        words = [", ".join(f"{counts[name]} {name}" for name in states)] if states else []
        ended = all(one.final and not one.undecided for one in begun.values())
        over = ended and not due and "later" not in again.values() and (target.over or closed is not None)
        if over and not states:
            what = "left no complete checkpoint" if stage.on else "has no point for it"
            return StageStatus(stage, "CANCELLED", f"{stage.target} {what}", over=True)
        state = states[0] if states else ""
        if not over and ended:
            state = "SUBMITTING" if due else "PENDING"
            part = "checkpoint" if stage.on else "point"
            words.append("due now" if due else f"waits for {'the next' if begun else 'a'} {part} of {stage.target}")
        reason = "; ".join([*words, *refusals[:1]])
        return StageStatus(stage, state, reason, tuple(begun.values()), over=over, due=tuple(due))

    def _wanted(self, stage: StageRecord, target: StageStatus, statuses: Mapping[str, RunStatus]) -> Iterator[DueRun]:
        """The runs that a stage is to have by now."""
        if (sweep := target.sweep) is None:
            parts = [(self.pipeline.stage_run(target.stage.name), target.over, target.state)] if target.runs else []
        else:
            current = _is_current(sweep)
            parts = [
                (sweep.sweep.point(one.point.number), _is_over(one.status, current=current), one.status.state)
                for one in sweep.points
                if one.status.attempts or stage.each is not None
            ]
        for run, over, state in parts:
            if stage.each is None:
                for key, found in checkpoints_for(self.pipeline, stage, run, over=over, decide=self.decide).items():
                    yield DueRun(stage, _last(statuses.get(key)), key, run, found)
            elif over and _met(stage.after.get(stage.each, "ok"), state):
                key = str(point_number(run))
                yield DueRun(stage, _last(statuses.get(key)), key, run)

    def _closed(self, stage: StageRecord) -> StageStatus | None:
        """Why nothing of a stage may be submitted now; None where it may."""
        if self.ended or os.path.exists(self.pipeline.cancelled(stage.name)):
            reason = "the pipeline was cancelled" if self.ended else "it was cancelled"
            return StageStatus(stage, "CANCELLED", reason, over=True)
        refusal = read_record(self.pipeline.refused(stage.name), StageRefusal)
        if refusal is not None and refusal.final:
            return StageStatus(stage, "STOPPED", refusal.reason, over=True)
        waits = []
        for name, wanted in stage.after.items():
            before = self.status(name)
            if name == stage.target:
                continue
            if not before.over:
                waits.append(name if wanted == "ok" else f"{name} ({wanted})")
            elif not _met(wanted, before.state):
                needed = wanted != "not-ok"
                return StageStatus(stage, "CANCELLED", f"{name} is {before.state}", over=True, needed=needed)
        if waits:
            return StageStatus(stage, "PENDING", f"waits for {', '.join(waits)}")
        if stage.target is not None:
            before = self.status(stage.target)
            if before.over and not before.runs:
                return StageStatus(stage, "CANCELLED", f"{stage.target} is {before.state}", over=True)
            if not before.runs:
                return StageStatus(stage, "PENDING", f"waits for {stage.target}")
        return None


def _last(status: RunStatus | None) -> int:
    return status.attempts[-1].number if status is not None and status.attempts else 0


def _submit_again(run: RunFolder) -> Literal["yes", "later", "no"]:
    """Whether the first submission of a stage's run came to nothing, so that a driver is to repeat it."""
    voids = [Reader().read(attempt).void for attempt in run.attempts()]
    if not voids or all(map(never_submitted, voids)):
        return "yes"
    if not all(never_submitted(void) or was_refused(void, for_now=True) for void in voids):
        return "no"
    age = 0.0
    with suppress(OSError):
        age = time.time() - run.attempts()[-1].claim.stat().st_mtime
    return "yes" if never_submitted(voids[-1]) or age > RETRY_S else "later"


def _is_newer(run: RunFolder, status: RunStatus) -> bool:
    """Whether a run got another attempt after this status was taken, which then says nothing about its end."""
    return bool(status.attempts) and run.attempts()[-1:] != [run.attempt(status.attempts[-1].number)]


def _is_current(status: SweepStatus) -> bool:
    """Whether each point has a job, and none got another attempt after this status was taken.

    Until then, a point whose submission came to nothing looks as if it had ended.
    """
    sweep = status.sweep
    settled = os.path.exists(sweep.submitted) or os.path.exists(sweep.cancel)
    return settled and status.stamp is not None and status.stamp == sweep.run.attempts_stamp()


def _is_over(status: RunStatus, *, current: bool) -> bool:
    """Whether a point is over. `current`: as `_is_current` says of its sweep."""
    return status.state == "COMPLETED" or (current and status.final and not status.undecided)


def _met(wanted: str, state: str) -> bool:
    return wanted == "any" or (state == "COMPLETED") == (wanted == "ok")


@dataclass(frozen=True)
class PipelineStatus:
    """A pipeline now."""

    pipeline: PipelineFolder
    stages: tuple[StageStatus, ...]
    stamp: int | None = None
    """When a run of it last got an attempt (ns), before the runs were read."""

    @property
    def due(self) -> tuple[DueRun, ...]:
        """The runs that are to be submitted now."""
        return tuple(run for stage in self.stages for run in stage.due)

    @property
    def may_be_due(self) -> bool:
        """Whether something is to be submitted, or a checkpoint may be new."""
        return bool(self.due) or any(one.stage.on is not None and not one.over for one in self.stages)

    def as_run(self) -> RunStatus:
        """The pipeline as one line of a list: its progress is the number of stages that completed."""
        needed = [one for one in self.stages if one.needed]
        counts = Counter(one.state for one in needed)
        state = next((name for name in STATE_ORDER if counts[name]), "UNKNOWN")
        words = ", ".join(f"{one.stage.name} {one.state}" for one in needed if one.state != "COMPLETED")
        # Where all are, only a new attempt can change this status.
        over = (one.over and all(run.settled for run in one.runs) for one in self.stages)
        return group_status(
            self.pipeline.run,
            state,
            (words or None) if self.stages else "pipeline.json cannot be read",
            [status for one in self.stages for status in one.runs],
            progress=Progress(step=counts["COMPLETED"], total=len(needed)),
            undecided=state in FINAL_RUN_STATES and not all(one.over for one in needed),
            final_stamp=self.stamp if self.stages and all(over) else None,
        )

    def as_json(self) -> dict[str, Any]:
        """The object of `status PIPELINE --json`."""
        return {**self.as_run().as_json(attempts=False), "stages": [one.as_json() for one in self.stages]}


def pipeline_status(
    pipeline: PipelineFolder, found: Found, stamp: int | None = None, *, decide: bool = False
) -> PipelineStatus:
    """The state of a pipeline by those of its runs, read after `stamp`. `decide`: as for `checkpoints_for`."""
    view = StageStates(pipeline, found, decide=decide)
    return PipelineStatus(pipeline, tuple(view.status(stage.name) for stage in pipeline.record.stages), stamp)
