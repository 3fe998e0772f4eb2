"""What the tests submit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.status.run_status import Prepared, RunStatus
from hpc_launch.run.status.tracker import RunTracker
from tests.run.fake import FakeScheduler


def prepared(runs: Path, **changes: Any) -> Prepared:
    values: dict[str, Any] = {
        "name": "tiny",
        "site": "test",
        "scheduler": "slurm",
        "runs_folder": runs,
        "job_yaml": "name: tiny\n",
        "resolved_yaml": "name: tiny  # job.yaml:1\n",
        "site_yaml": "name: test\n",
        "script": "#!/bin/bash\ntrue\n",
        "plan": {"world_size": 4, "progress": {"step": r"step (\d+)/(\d+)", "loss": r"loss ([\d.]+)"}},
        "secrets": {"WANDB_API_KEY": "very-secret"},
    }
    return Prepared(**{**values, **changes})


def status_of(run: RunFolder, scheduler: FakeScheduler, *, later_s: float = 0.0) -> RunStatus:
    """What `status` says `later_s` seconds from now."""
    tracker = RunTracker([run], lambda _: scheduler, clock=lambda: scheduler.clock() + later_s)
    return tracker.poll(fresh=True)[run.name]


def only_run(runs: Path) -> RunFolder:
    (path,) = runs.iterdir()
    return RunFolder(path)


def node_log(attempt: AttemptFolder, node: int = 0) -> Path:
    return attempt.logs / f"node-{node}.log"
