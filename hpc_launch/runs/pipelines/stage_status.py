"""A stage of a pipeline now, and the runs of it that are to be submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.pipelines.checkpoint_runs import CheckpointRun
from hpc_launch.runs.pipelines.pipeline_folder import StageRecord
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.sweeps.sweep_status import SweepStatus

Found = Mapping[str, RunStatus | SweepStatus]
"""The states of runs and sweeps by name."""


class StageRefusal(Struct, frozen=True, kw_only=True):
    """refused-STAGE: why the job of a stage could not be prepared."""

    reason: str = ""
    final: bool = False
    """Whether no driver tries again, until a user resubmits the stage."""


@dataclass(frozen=True)
class DueRun:
    """A run that is to be submitted now."""

    stage: StageRecord
    attempt: int
    """The number of its last attempt, which came to nothing; 0 for none. A later one is another driver's."""
    key: str | None = None
    checkpoint: CheckpointRun | None = None
    point: RunFolder | None = None


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
