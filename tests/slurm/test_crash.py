"""Processes that are killed, frozen or left without an answer while they submit to a real Slurm: one training or none.

Each training writes a line into a file, so that what really ran is counted, whatever hpc-launch says.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.runs.submitting.run_store import KILL_AFTER, STOP_AFTER
from hpc_launch.runs.submitting.submit_attempt import STEPS
from tests.cluster.faults import PATIENCE_S, wait_until
from tests.cluster.syscalls import descendants
from tests.slurm.user import User

AFTER_SBATCH = STEPS[STEPS.index("submitted") :]


def job_of(user: User, **more: str) -> str:
    """A training that says that it ran."""
    lines = [f"{key}: {value}" for key, value in more.items()]
    command = f"command: [sh, -c, 'echo $SLURM_JOB_ID >>{user.marker}']"
    return "\n".join(["name: crash", "launcher: srun", "cpus_per_node: 1", command, *lines, ""])


def jobs_of(user: User) -> list[str]:
    """The jobs of the runs that lie in the user's folder, in the queue now, as Slurm says."""
    return [line for line in user.cluster.jobs() or [] if " crash." in line]


def listed(user: User) -> list[dict[str, Any]]:
    done = user.launch("list", "--json")
    assert done.returncode == 0, done.stderr
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def stopped(process: subprocess.Popen[str]) -> Callable[[], bool]:
    """Whether a process below this one has been stopped by a signal."""

    def states() -> bool:
        files = [Path(f"/proc/{number}/stat") for number in descendants(process.pid)]
        return any(file.read_text().rpartition(")")[2].split()[0] == "T" for file in files if file.exists())

    return states


@pytest.mark.slow
def test_killed_after_any_step_there_is_one_training_or_none(user: User) -> None:
    users = {step: User(user.cluster, user.cluster.user_folder(f"killed-{step}-")) for step in STEPS}
    # In a folder that only the job file names: the run must be found all the same.
    jobs = {step: one.job(job_of(one, run_dir=f"{one.home}/here")) for step, one in users.items()}

    drivers = {step: one.popen("submit", jobs[step], env={KILL_AFTER: step}) for step, one in users.items()}

    for step, driver in drivers.items():
        out, err = driver.communicate(timeout=PATIENCE_S)
        assert driver.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}, (step, out, err)
    for step, one in users.items():
        (run,) = listed(one)
        wanted = "COMPLETED" if step in AFTER_SBATCH else "STOPPED"
        status = one.until(run["run"], "COMPLETED", "STOPPED", "FAILED", "CANCELLED", "STUCK")
        assert status["state"] == wanted, (step, status)
        trained = one.trainings()
        assert trained == ([status["job_id"]] if wanted == "COMPLETED" else []), step
        assert [entry["state"] for entry in listed(one)] == [wanted], step


@pytest.mark.prove
@pytest.mark.slow
def test_a_controller_that_answers_too_late_gets_one_job(user_in_trouble: User) -> None:
    user = user_in_trouble
    job = user.job(job_of(user))
    user.cluster.freeze_controller()
    driver = user.popen("submit", job, "--json")
    wait_until(lambda: bool(list(user.home.glob("runs/*/attempts/001/intent.json"))))
    (attempt,) = user.home.glob("runs/*/attempts/001")
    # sbatch has sent its request and gives up after MessageTimeout, 10 s; the driver looks on for a while.
    time.sleep(14)
    user.cluster.thaw_controller()

    out, err = driver.communicate(timeout=PATIENCE_S)

    assert driver.returncode in {0, 4}, out + err
    if driver.returncode == 4:
        assert "hpc-launch status" in err
        assert "nothing is submitted twice" in err
    status = user.until("@last", "COMPLETED", "FAILED", "STOPPED")
    assert status["state"] == "COMPLETED", status
    assert user.trainings() == [status["job_id"]]
    assert attempt.joinpath("claim").read_text().split() == [status["job_id"]]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["checked", "submitted"])
def test_a_driver_that_wakes_up_after_its_attempt_was_repeated(user: User, step: str) -> None:
    # Held, so that the first job cannot have trained before it is cancelled.
    job = user.job(job_of(user, sbatch="{hold: true}"))
    driver = user.popen("submit", job, env={STOP_AFTER: step})
    wait_until(stopped(driver))
    (run,) = listed(user)
    assert run["state"] in {"SUBMITTING", "PENDING", "STUCK"}

    assert user.launch("cancel", run["run"]).returncode == 0
    done = user.launch("resubmit", run["run"], "--set", "sbatch.hold=null", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    user.cluster.thaw(driver)
    out, err = driver.communicate(timeout=PATIENCE_S)

    assert driver.returncode == 2, out + err
    assert "abandoned meanwhile" in err
    wait_until(lambda: not any(f" {name}" in line for line in jobs_of(user) for name in names(user)))
    status = user.status(run["run"])
    assert status["state"] == "COMPLETED"
    assert [attempt["state"] for attempt in status["attempts"]][-1] == "COMPLETED"
    assert user.trainings() == [status["job_id"]]


def names(user: User) -> list[str]:
    """The job names of all attempts in the user's folder."""
    return [json.loads(path.read_text())["job_name"] for path in user.home.glob("runs/*/attempts/*/intent.json")]
