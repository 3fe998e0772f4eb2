"""The state of a pipeline: those of its stages, and what is due. It is not on record, but follows from the runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hpc_launch.runs.pipelines.pipeline_folder import PipelineFolder
from hpc_launch.runs.pipelines.stage_states import StageStates
from hpc_launch.runs.pipelines.stage_status import DueRun, Found, StageStatus
from hpc_launch.runs.status.run_status import FINAL_RUN_STATES, STATE_ORDER, Progress, RunStatus, group_status


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
        return group_status(
            self.pipeline.run,
            state,
            (words or None) if self.stages else "pipeline.json cannot be read",
            [status for one in self.stages for status in one.runs],
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
