"""Attempts of a job with roles: in the same job, in the successor, after a requeue and at the time limit.

Each attempt starts all of its roles anew, and nothing is left of those before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.test_restart import batch_logs, ended, record
from tests.slurm.test_roles import SERVES, roles, states, wait_for, why
from tests.slurm.user import User

pytestmark = pytest.mark.prove

SERVER = "echo served $HPC_LAUNCH_ATTEMPT by $SLURM_JOB_ID; setsid sleep 300 & " + SERVES
"""It leaves a process in a session of its own."""
TRAIN = """\
import os, sys, time, urllib.request as ask
run, attempt, batch = os.environ["HPC_LAUNCH_RUN_DIR"], int(os.environ["HPC_LAUNCH_ATTEMPT"]), sys.argv[3]
with open(f"{run}/trained", "a") as file:
    print(attempt, os.environ["SLURM_JOB_ID"], batch, ask.urlopen(os.environ["ROLE_SERVER_URL"]).status, file=file)
folder = run + "/checkpoints"
os.makedirs(folder, exist_ok=True)
first = int(os.environ.get("HPC_LAUNCH_RESUME_STEP") or 0)
for step in range(first + 1, 200):
    print(f"step {step}/200", flush=True)
    if attempt == 1 and step == 3 and sys.argv[1] != "-":
        print(sys.argv[1], flush=True)
        sys.exit(1)
    if attempt > 1 and step > first + 3:
        print("step 200/200", flush=True)
        break
    time.sleep(0.3)
    if os.path.exists(os.environ["HPC_LAUNCH_STOP_FILE"]):
        open(f"{folder}/step-{step}", "w").write("x")
        break
"""
"""It ends early in its first attempt, as its first argument says, or goes on until it is told to save."""
STALE = "OSError: [Errno 116] Stale file handle: '/scratch/corpus/part-7.bin'"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


def job(user: User, says: str = "-", serve: str = SERVER, **keys: Any) -> str:
    """A server and a training, which may end early in its first attempt."""
    user.cluster.write(user.home / "train.py", TRAIN)
    train = {
        "command": ["python3", "train.py", says],
        "args": {"batch": 8},
        "progress": {"step": r"step (\d+)/(\d+)"},
        "checkpoint": {"dir": "${run.dir}/checkpoints", "pattern": r"step-(\d+)", "signal_before": "20s"},
    }
    keys = {"retry": {"max_attempts": 3, "batch": {"micro": "roles.train.args.batch"}, **keys.pop("retry", {})}, **keys}
    return roles(user, serve, "", train=train, **keys)


def trained(run: dict[str, Any]) -> list[list[str]]:
    """Attempt, job, batch and the server's answer of each training."""
    path = Path(run["folder"], "trained")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def completed(user: User, run: dict[str, Any], attempts: int = 2) -> list[tuple[str, str]]:
    """The verdicts and jobs of the attempts, once the run is complete and nothing is left of it."""
    wait_until(lambda: ended(run, attempts), 200, lambda: batch_logs(run))
    status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")
    assert status["state"] == "COMPLETED", batch_logs(run)
    assert [row[3] for row in trained(run)] == ["200"] * attempts
    for number in range(1, attempts + 1):
        log = user.launch("logs", run["run"], "--role", "server", "--attempt", str(number)).stdout
        assert f"served {number} by" in log, "one log for each role and attempt"
    user.nothing_left()
    return [(one["verdict"], one["job_id"]) for one in status["attempts"]]


@pytest.mark.parametrize(
    ("says", "verdict", "batch"),
    [(STALE, "RETRY", "8"), (OOM, "RETRY_CHANGED", "4")],
    ids=["stale-file", "out-of-memory"],
)
def test_the_run_continues_in_the_same_job(user: User, says: str, verdict: str, batch: str) -> None:
    run = user.submit(job(user, says))
    assert completed(user, run) == [(verdict, run["job_id"]), ("NONE", run["job_id"])]
    assert [row[:3] for row in trained(run)] == [["1", run["job_id"], "8"], ["2", run["job_id"], batch]]


def test_a_server_that_runs_out_of_memory_changes_no_batch(user: User) -> None:
    run = user.submit(job(user, serve=f"{SERVES} & sleep 3; echo '{OOM}'; exit 1"))
    status = user.until(run["run"], "STOPPED", "FAILED", "COMPLETED")
    assert [(one["class"], one["verdict"]) for one in status["attempts"]] == [("cuda_oom", "STOP")]
    assert why(user)["first_failure"]["role"] == "server"


def test_the_successor_takes_over(user: User) -> None:
    run = user.submit(job(user, STALE, retry={"successor": "on", "in_allocation": "off"}))
    waits = record(run, 1, "successor.json")["job_id"]
    assert completed(user, run) == [("RETRY", run["job_id"]), ("NONE", waits)]


def test_a_requeued_job_starts_its_roles_again(user: User) -> None:
    user.site("", ("scheduler: slurm", "scheduler: {type: slurm, requeue: scheduler}"))
    run = user.submit(job(user))
    wait_for(user, "train", "ready")
    wait_until(lambda: len(trained(run)) == 1)
    assert user.cluster.run(["scontrol", "requeue", run["job_id"]]).returncode == 0
    assert [job_id for _, job_id in completed(user, run)] == [run["job_id"]] * 2
    assert states(user)["server"]["restarts"] == 0


def test_at_the_time_limit_the_training_saves_while_its_server_runs_and_the_run_continues(user: User) -> None:
    run = user.submit(job(user, time="00:01:00", retry={"successor": "off"}))
    wait_until(lambda: ended(run, 1), 150, lambda: batch_logs(run))
    user.status(run["run"])  # submits the next attempt
    verdicts = completed(user, run)
    assert [verdict for verdict, _ in verdicts] == ["CONTINUE", "NONE"]
    assert list(Path(run["folder"], "checkpoints").glob("step-*"))


def test_a_job_in_an_allocation_that_is_there_starts_its_roles(user: User) -> None:
    path = roles(user, SERVER, "curl -sf $ROLE_SERVER_URL; echo on $(hostname)")
    words = ["salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "hpc-launch", "run", path]
    done = user.cluster.run(words, cwd=user.home, env=user.env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert states(user)["server"]["nodes"] != states(user)["train"]["nodes"]
    user.nothing_left()
