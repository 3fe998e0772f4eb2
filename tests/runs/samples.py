"""What the tests submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from hpc_launch.base.json_records import as_record
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles
from hpc_launch.runs.records.plan_record import PlanRecord
from hpc_launch.runs.records.submission import CancelRequest, Intent, Overrides, ScriptRecord, SubmittedJob
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.schedulers.scheduler import JobRecord
from tests.cluster.requirements import REPOSITORY
from tests.runs.fake import FakeScheduler


def prepared(runs: Path, **changes: Any) -> PreparedAttempt:
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
    values |= changes
    values["plan"] = as_record(to_builtins(values["plan"]), PlanRecord)
    values["overrides"] = as_record(values.get("overrides", {}), Overrides)
    return PreparedAttempt(**values)


KINDS: dict[str, Any] = {
    "intent": Intent,
    "job": SubmittedJob,
    "start": ScriptRecord,
    "end": ScriptRecord,
    "final": JobRecord,
    "cancel": CancelRequest,
    "verdict": VerdictRecord,
}


def files(attempt: AttemptFolder, **data: Any) -> AttemptFiles:
    """The records of an attempt whose files hold this JSON."""
    return AttemptFiles(attempt, **as_records(data))


def as_records(data: dict[str, Any]) -> dict[str, Any]:
    """JSON as the records of AttemptFiles, by name."""
    return {key: as_record(value, KINDS[key]) if key in KINDS else value for key, value in data.items()}


def status_of(run: RunFolder, scheduler: FakeScheduler, *, later_s: float = 0.0) -> RunStatus:
    """What `status` says `later_s` seconds from now."""
    tracker = RunTracker([run], lambda _: scheduler, clock=lambda: scheduler.clock() + later_s)
    return tracker.poll(fresh=True)[run.name]


def only_run(runs: Path) -> RunFolder:
    (path,) = runs.iterdir()
    return RunFolder(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none."""
    return dict(json.loads(path.read_text())) if path.exists() else None


def in_another_process(module: str, *words: object, **environment: str) -> subprocess.Popen[str]:
    """`python -m MODULE WORDS`, to be killed or frozen."""
    command = [sys.executable, "-m", module, *map(str, words)]
    env = {**os.environ, **environment}
    return subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)


def node_log(attempt: AttemptFolder, node: int = 0) -> Path:
    return attempt.logs / f"node-{node}.log"
