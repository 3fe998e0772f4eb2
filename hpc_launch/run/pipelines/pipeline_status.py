"""The state of a pipeline: those of its stages, and what is due. It is not on record, but follows from the runs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpc_launch.run.pipelines.pipeline_folder import PipelineFolder
from hpc_launch.run.pipelines.stage_states import StageStates
from hpc_launch.run.pipelines.stage_status import DueRun, Found, StageStatus
from hpc_launch.run.records.run_info import read_info
from hpc_launch.run.status.run_status import FINAL_RUN_STATES, Progress, RunStatus
from hpc_launch.run.sweeps.sweep_status import STATE_ORDER


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
        run, info = self.pipeline.run, read_info(self.pipeline.run)
        needed = [one for one in self.stages if one.needed]
        counts = Counter(one.state for one in needed)
        state = next((name for name in STATE_ORDER if counts[name]), "UNKNOWN")
        runs = [status for one in self.stages for status in one.runs]
        ages = [status.age_s for status in runs if status.age_s is not None]
        active = [status for status in runs if status.state == state]
        words = ", ".join(f"{one.stage.name} {one.state}" for one in needed if one.state != "COMPLETED")
        return RunStatus(
            run=run.name,
            name=info.name if info else run.name,
            site=info.site if info else "",
            folder=run.path,
            state=state,
            reason=(words or None) if self.stages else "pipeline.json cannot be read",
            job_id=None,
            source=active[0].source if active else "none",
            age_s=max(ages, default=None),
            progress=Progress(step=counts["COMPLETED"], total=len(needed)),
            undecided=state in FINAL_RUN_STATES and not all(one.over for one in needed),
            final_stamp=self.stamp if self.stages and self._is_over else None,
        )

    @property
    def _is_over(self) -> bool:
        """Whether only a new attempt can change this status."""
        return all(one.over for one in self.stages) and all(run.settled for one in self.stages for run in one.runs)

    def as_json(self) -> dict[str, Any]:
        """The object of `status PIPELINE --json`."""
        return {**self.as_run().as_json(attempts=False), "stages": [one.as_json() for one in self.stages]}


def pipeline_status(
    pipeline: PipelineFolder, found: Found, stamp: int | None = None, *, decide: bool = False
) -> PipelineStatus:
    """The state of a pipeline by those of its runs, read after `stamp`. `decide`: as for `checkpoint_runs`."""
    view = StageStates(pipeline, found, decide=decide)
    return PipelineStatus(pipeline, tuple(view.status(stage.name) for stage in pipeline.record.stages), stamp)


def pipeline_stamp(pipeline: PipelineFolder) -> int | None:
    """When a run of a pipeline last got an attempt (ns); None if unknown."""
    with suppress(OSError):
        return pipeline.run.attempts_stamp()
    return None
