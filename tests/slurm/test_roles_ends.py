"""Several programs in one job, on real nodes: what each of them sees of the end, of a requeue, and of the successor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.busy import patience
from tests.cluster.faults import wait_until
from tests.slurm.test_roles import SERVES, attempt_of, roles, states, wait_for
from tests.slurm.test_successor import ON
from tests.slurm.user import User

pytestmark = pytest.mark.prove


def test_the_training_is_asked_to_end_before_it_is_killed_when_the_job_is_cancelled(user: User) -> None:
    """It has as long as its grace time says; a process in a session of its own ends, too."""
    saves = f"trap 'sleep 3; echo saved >{user.home}/saved; exit 0' TERM; setsid sleep 300 & while :; do wait; done"
    run = user.submit(roles(user, "setsid sleep 300 & " + SERVES, saves, train={"grace": "9s"}))
    wait_for(user, "train", "ready")
    user.cluster.run(["scancel", run["job_id"]], check=True)
    user.until("@last", "CANCELLED")
    user.nothing_left()
    assert (user.home / "saved").exists()


def test_roles_on_one_node_have_different_gpus(user: User) -> None:
    server = {"gpus": 1}
    shows = "echo gpus=$CUDA_VISIBLE_DEVICES; "
    keys = {"nodes": 1, "gpus_per_node": 3, "server": server, "train": {"beside": "server", "nodes": 1, "gpus": 2}}
    user.completed(roles(user, shows + SERVES, shows + "curl -sf $ROLE_SERVER_URL", **keys))
    logs = [user.launch("logs", "@last", "--role", name).stdout for name in ("server", "train")]
    seen = [log.partition("gpus=")[2].split()[0].split(",") for log in logs]
    assert [len(one) for one in seen] == [1, 2]
    assert len({*seen[0], *seen[1]}) == 3
    assert "temporarily disabled" not in (attempt_of(user) / "batch.log").read_text()


def test_a_requeue_overwrites_no_log(user: User) -> None:
    user.site("", ("scheduler: slurm", "scheduler: {type: slurm, requeue: scheduler}"))
    says = "echo attempt=$HPC_LAUNCH_ATTEMPT; "
    client = says + "[ $HPC_LAUNCH_ATTEMPT -gt 1 ] || sleep 300; curl -sf $ROLE_SERVER_URL"
    run = user.submit(roles(user, says + SERVES, client, retry={"max_attempts": 3}))
    wait_for(user, "train", "ready")
    user.cluster.run(["scontrol", "requeue", run["job_id"]], check=True)
    status = user.until("@last", "COMPLETED", "FAILED", "STOPPED")
    assert (status["state"], len(status["attempts"])) == ("COMPLETED", 2)
    for role in ("server", "train"):
        logs = [user.launch("logs", "@last", "--role", role, "--attempt", one).stdout for one in ("1", "2")]
        assert [one.count("attempt=") for one in logs] == [1, 1]
        assert ["attempt=1" in logs[0], "attempt=2" in logs[1]] == [True, True]
    user.nothing_left()


TRAINS = """\
import os, time, urllib.request as ask
folder = os.environ["HPC_LAUNCH_RUN_DIR"] + "/checkpoints"
os.makedirs(folder, exist_ok=True)
first = int(os.environ.get("HPC_LAUNCH_RESUME_STEP") or 0)
for step in range(first + 1, 41):
    time.sleep(0.5)
    print(f"step {step}/40", ask.urlopen(os.environ["ROLE_SERVER_URL"]).status, flush=True)
    if os.path.exists(os.environ["HPC_LAUNCH_STOP_FILE"]) or step == 40:
        open(f"{folder}/step-{step}", "w").write("x")
        break
"""


def test_the_successor_takes_over_when_the_ports_are_free_and_no_server_is_restarted(user: User) -> None:
    user.cluster.write(user.home / "train.py", TRAINS)
    train: dict[str, Any] = {
        "command": ["python3", "train.py"],
        "progress": {"step": r"step (\d+)/(\d+)"},
        "checkpoint": {"dir": "${run.dir}/checkpoints", "pattern": r"step-(\d+)", "signal_before": "60s"},
    }
    job = roles(user, SERVES, "", train=train, server={"restart": 1}, retry={"max_attempts": 2, **ON})
    run = user.submit(job)
    wait_until(lambda: (user.status()["progress"]["step"] or 0) > 2, explain=lambda: str(user.status()), every=1)
    first = attempt_of(user)
    user.cluster.run(["scancel", "--batch", "--signal=USR1", run["job_id"]], check=True)
    status = user.until("@last", "COMPLETED", "FAILED", "STOPPED")
    assert status["state"] == "COMPLETED", status
    assert len({one["job_id"] for one in status["attempts"]}) == 2
    assert {one["restarts"] for one in json.loads((first / "roles.json").read_text())["roles"]} == {0}
    assert states(user)["server"]["restarts"] == 0
    second = attempt_of(user)
    assert first.name < second.name
    # Its ports were chosen after those of the first job were given up.
    assert (second / "roles" / "ports-0.json").stat().st_mtime >= (first / "roles" / "over").stat().st_mtime
    user.nothing_left(patience(60))
