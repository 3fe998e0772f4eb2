"""Runs one method of the Slurm scheduler, on the cluster's login node as an ordinary user: JSON in, JSON out.

    python -m tests.schedulers.driver METHOD < {"args": …}

A process of its own each time, as the verbs of hpc-launch are: nothing of Submitit lives on from call to call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from hpc_launch.base.errors import SchedulerError
from hpc_launch.schedulers.scheduler import Submission, scheduler_for


def call(method: str, values: dict[str, Any]) -> Any:
    scheduler = scheduler_for("slurm")
    if method in {"submit", "test_only"}:
        values |= {"folder": Path(values["folder"]), "options": tuple(values.get("options", ()))}
        return getattr(scheduler, method)(Submission(**values))
    if method == "query":
        found = scheduler.query(values["job_ids"], fresh=values["fresh"])
        return {job_id: asdict(record) for job_id, record in found.items()}
    if method == "find":
        return [asdict(record) for record in scheduler.find(values["job_name"])]
    return getattr(scheduler, method)(**values)


def main() -> None:
    values = json.load(sys.stdin)
    try:
        answer = {"result": call(sys.argv[1], values)}
    except SchedulerError as error:
        answer = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
