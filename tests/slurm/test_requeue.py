"""A job that goes back into Slurm's queue with changes: what stands afterwards, and what happens where one fails."""

from __future__ import annotations

import time

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

PUT_BACK = """
import sys
from hpc_launch.schedulers.scheduler import Change
from hpc_launch.schedulers.slurm.slurm_scheduler import SlurmScheduler
scheduler = SlurmScheduler()
print(scheduler.put_back(sys.argv[1], Change(**eval(sys.argv[2]))))
if "release" in sys.argv:
    scheduler.release(sys.argv[1])
"""


def over(user: User, *options: str) -> str:
    """A job of no length that is over."""
    words = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "true"]
    job_id = user.cluster.run(words, cwd=user.home, check=True).stdout.strip()
    wait_until(lambda: "JobState=COMPLETED" in shown(user, job_id), 30, lambda: shown(user, job_id))
    return job_id


def shown(user: User, job_id: str) -> str:
    return user.cluster.run(["scontrol", "--oneliner", "show", "job", job_id]).stdout


def put_back(user: User, job_id: str, change: str, *more: str) -> str:
    done = user.cluster.run(["python3", "-c", PUT_BACK, job_id, change, *more], cwd=user.home)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_change_stands_before_the_job_is_let_go(user: User) -> None:
    job_id = over(user, "--requeue", "--mem=100", "--time=5")
    change = "{'exclude': ('n1', 'n2', 'n3'), 'memory': 1536, 'time_s': 1200, 'partition': 'high', 'delay_s': 3.0}"

    assert put_back(user, job_id, change) == "1"

    held = shown(user, job_id)
    assert " ExcNodeList=n[1-3] " in held or " ExcNodeList=n1,n2,n3 " in held
    for word in ("Priority=0", "TimeLimit=00:20:00", "Partition=high", "Requeue=0"):
        assert f" {word} " in held, held
    time.sleep(3)
    assert "JobState=PENDING" in shown(user, job_id)
    user.cluster.run(["scontrol", "release", job_id], check=True)
    wait_until(lambda: "JobState=COMPLETED" in shown(user, job_id), 30, lambda: shown(user, job_id))
    assert " NodeList=n4 " in shown(user, job_id)


def test_a_change_that_fails_takes_the_job_out(user: User) -> None:
    job_id = over(user, "--requeue")
    assert f"job {job_id} was taken out of the queue" in put_back(user, job_id, "{'partition': 'nowhere'}")
    assert "JobState=CANCELLED" in shown(user, job_id)


@pytest.mark.parametrize("options", [("--no-requeue",), None])
def test_what_cannot_go_back_is_said(user: User, options: tuple[str, ...] | None) -> None:
    job_id = "99999" if options is None else over(user, *options)
    said = put_back(user, job_id, "{}")
    assert said
    assert not said.isdecimal(), said
    if options is not None:
        assert "JobState=COMPLETED" in shown(user, job_id)
