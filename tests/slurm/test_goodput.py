"""Where the time of runs on a real Slurm went: the categories are the wall time, however a run ended."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.performance.time_account import CATEGORIES
from tests.cluster.faults import wait_until
from tests.slurm.user import User

TRAINING = """\
import os, sys, time
attempt, first = int(os.environ["HPC_LAUNCH_ATTEMPT"]), 1 if os.environ["HPC_LAUNCH_ATTEMPT"] == "1" else 11
time.sleep(1)
for step in range(first, 41):
    time.sleep(0.15)
    print(f"step {step}/40 loss {4 / step:.3f}", flush=True)
    if attempt == 1 and step == 20 and sys.argv[1] == "fails":
        print("OSError: [Errno 116] Stale file handle: '/scratch/corpus/part-7.bin'", flush=True)
        sys.exit(1)
    while step == 20 and sys.argv[1] == "waits":
        time.sleep(0.1)
"""


def submitted(user: User, name: str, how: str) -> dict[str, Any]:
    script = user.cluster.write(user.home / "train.py", TRAINING)
    progress = {"step": r"step (\d+)/(\d+)", "loss": r"loss (\S+)"}
    keys = {"name": name, "nodes": 1, "processes_per_node": 1, "cpus_per_node": 1, "launcher": "torchrun"}
    return user.submit(yaml.safe_dump({**keys, "script": str(script), "args": [how], "progress": progress}))


def spent(user: User, run: dict[str, Any]) -> dict[str, float]:
    """The time of a run that is over, which must be its wall time within 1 %."""
    found = user.status(run["run"])
    seconds: dict[str, float] = found["time"]
    assert list(seconds) == list(CATEGORIES)
    assert min(seconds.values()) >= 0
    folder = Path(run["folder"])
    created = json.loads((folder / "run.json").read_text())["created"]
    ends = [json.loads(path.read_text())["ended"] for path in sorted(folder.glob("attempts/*/final.json"))[-1:]]
    ends += [json.loads(path.read_text())["ended"] for path in sorted(folder.glob("attempts/*/end.json"))[-1:]]
    assert ends, found
    assert sum(seconds.values()) == pytest.approx(max(ends) - created, rel=0.01)
    return {name: value for name, value in seconds.items() if value > 0.5}


def at_step_20(run: dict[str, Any]) -> bool:
    log = Path(run["folder"], "attempts", "001", "logs", "node-0.log")
    return log.exists() and "step 20/" in log.read_text()


@pytest.mark.prove
def test_the_time_of_runs_that_fail_once_are_cancelled_and_are_killed(user: User) -> None:
    fails, cancelled, killed = (
        submitted(user, name, how) for name, how in (("fails", "fails"), ("cancelled", "waits"), ("killed", "waits"))
    )
    for run in (cancelled, killed):
        wait_until(lambda run=run: at_step_20(run), explain=lambda: user.launch("list").stdout)  # type: ignore[misc]
    time.sleep(3)
    live = user.status(cancelled["run"])["time"]
    assert live["training"] > 3
    user.launch("cancel", cancelled["run"])
    user.cluster.run(["scancel", "--signal=KILL", "--full", killed["job_id"]], check=True)

    assert user.until(fails["run"], "COMPLETED", "FAILED")["state"] == "COMPLETED"
    user.until(cancelled["run"], "CANCELLED")
    user.until(killed["run"], "FAILED", "STOPPED", "CANCELLED", "RETRYING", "RUNNING", "COMPLETED")
    user.launch("cancel", killed["run"])
    user.until(killed["run"], "FAILED", "STOPPED", "CANCELLED")

    first = spent(user, fails)
    assert {"starting", "training", "repeated"} <= set(first)
    assert 1 < first["repeated"] < first["training"] + 2, "steps 11 to 20"
    assert spent(user, cancelled)["training"] > 3
    assert spent(user, killed)["training"] > 1
    page = user.launch("report", fails["run"]).stdout
    assert page.count("<polyline") >= 3
    assert "filesystem_error" in page
    assert "fails-" in user.launch("list", "--goodput").stdout
