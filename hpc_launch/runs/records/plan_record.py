"""plan.json: what later stages need to know of the launch plan, and which plan an attempt runs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpc_launch.base.json_records import read_record
from hpc_launch.base.patterns import compiled
from hpc_launch.plan.recorded_parts import CheckpointPlan, CodePlan, NotifyPlan, RetryPlan
from hpc_launch.runs.layout import AttemptFolder, RunFolder

if TYPE_CHECKING:
    from hpc_launch.plan.launch_plan import LaunchPlan


class ProgressRecord(Struct, frozen=True, kw_only=True):
    """How to read progress from the log: regular expressions."""

    step: str | None = None
    loss: str | None = None


class PlanRecord(Struct, frozen=True, kw_only=True):
    """The part of a launch plan that drivers and views need. Times are seconds."""

    name: str = ""
    site: str = ""
    scheduler: str = ""
    """`slurm`, `ssh`, `local`, or that of another package."""
    cluster: str | None = None
    """Slurm's cluster, where the job names one of several."""
    nodes: int | None = None
    """Of the training, without spares."""
    spares: int = 0
    processes_per_node: int | None = None
    slots: tuple[int, ...] = ()
    """Processes of each host where hosts differ."""
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    world_size: int | None = None
    launcher: str = ""
    container: str | None = None
    """The runtime that starts the image on each node; None without an image, or if srun starts it."""
    phases: bool = False
    """Whether the watchers record the phases of the start."""
    time_limit_s: int | None = None
    signal_before_s: int | None = None
    requeue: bool = False
    """Whether Slurm itself may requeue the job."""
    fabric: str | None = None
    progress: ProgressRecord = ProgressRecord()
    checkpoint: CheckpointPlan | None = None
    recovery: RetryPlan | None = None
    code: CodePlan | None = None
    secrets: tuple[str, ...] = ()
    """Names of the environment variables that an attempt takes from its submitter."""
    notify: NotifyPlan | None = None
    sets: tuple[str, ...] = ()
    """The `--set` options of this and all earlier attempts."""
    excluded: tuple[str, ...] = ()
    """Nodes that this attempt excludes, besides the job file's own."""
    readmitted: tuple[str, ...] = ()
    """Nodes that are no longer excluded."""
    job_folder: str | None = None
    """The folder that relative paths of the job file start from."""
    job_file: str | None = None
    """The job file that the run was submitted from."""

    def processes_of(self, node: int) -> int:
        """The processes of a node, by its number; at least 1."""
        return self.slots[node] if node < len(self.slots) else self.processes_per_node or 1

    @property
    def chooses_nodes(self) -> bool:
        """Whether the attempts of a job may run on different nodes: with spares, or an elastic number."""
        return self.scheduler != "ssh" and (self.spares > 0 or (self.recovery is not None and self.recovery.elastic))


def plan_record(plan: LaunchPlan, **of_attempt: Any) -> PlanRecord:
    """The record of a launch plan. `of_attempt`: fields that the plan lacks, such as what its attempt changes."""
    main = plan.roles[0].plan if plan.roles else plan
    image = main.container
    same = {name: getattr(plan, name) for name in PlanRecord.__struct_fields__ if hasattr(plan, name)}
    changed = {
        "scheduler": plan.submitted_to,
        "container": image.runtime if image is not None and not image.started_by_srun else None,
        "phases": main.watch is not None and main.watch.phases,
        "processes_per_node": main.processes_per_node,
        "progress": ProgressRecord(**plan.progress),
        "checkpoint": plan.continuation.checkpoint,
    }
    return PlanRecord(**same | changed | of_attempt)


def plan_of(attempt: AttemptFolder) -> PlanRecord | None:
    """The plan that an attempt runs; None where none can be read.

    An attempt that Slurm began by requeueing the job has no plan.json: it runs the plan of the attempt before it.
    """
    for one in chain((attempt,), attempt.run.attempts_before(attempt)):
        with suppress(OSError):
            state = os.stat(one.plan)
            plan = _plan(one.plan, (state.st_mtime_ns, state.st_ino))
            if plan is not None:
                return plan
    return None


@lru_cache(maxsize=1024)
def _plan(path: Path, _state: tuple[int, int]) -> PlanRecord | None:
    """The record of a file in this state. A step looks at the plan of each run several times."""
    return read_record(path, PlanRecord)


def newest_plan(run: RunFolder) -> PlanRecord | None:
    """The plan of a run's last attempt; None where none can be read."""
    attempts = run.attempts()
    return plan_of(attempts[-1]) if attempts else None


def size_change(attempt: AttemptFolder) -> str | None:
    """How many processes the attempt has instead of those of the one before, as text; None for as many."""
    before = next(attempt.run.attempts_before(attempt), None)
    old, new = plan_of(before) if before is not None else None, plan_of(attempt)
    return changed_size(old, new.world_size, f"attempt {attempt.number}") if new is not None else None


def changed_size(old: PlanRecord | None, new: int | None, who: str = "the next attempt") -> str | None:
    """`the next attempt has 3 processes instead of 4`; None for as many, and where one is unknown."""
    before = old.world_size if old is not None else None
    return None if before is None or new is None or before == new else f"{who} has {new} processes instead of {before}"


def progress_patterns(plan: PlanRecord | None) -> dict[str, re.Pattern[str]]:
    """The valid patterns for step and loss by name."""
    patterns = plan.progress if plan is not None else ProgressRecord()
    result: dict[str, re.Pattern[str]] = {}
    for name, text in (("step", patterns.step), ("loss", patterns.loss)):
        try:
            pattern = compiled(text) if text is not None else None
        except re.error:
            continue
        if pattern is not None and pattern.groups:
            result[name] = pattern
    return result
