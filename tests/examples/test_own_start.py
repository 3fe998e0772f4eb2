"""`launcher: none` on a real Slurm: the program is started once, its srun fills the job, and its end is the run's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.slurm.user import User

JOB = "name: own\nlauncher: none\nnodes: 2\nprocesses_per_node: 2\ntime: 5m\n"


@pytest.fixture
def user(cluster: Cluster, user_dir: Path) -> User:
    return User(cluster, user_dir)


def test_it_runs_once_and_its_srun_fills_the_job(user: User) -> None:
    words = "echo started on $(uname -n) with $(wc -l <$HPC_LAUNCH_ATTEMPT_DIR/hostfile) hosts;"
    inner = 'echo "task $SLURM_PROCID of $SLURM_NTASKS on $(uname -n)"'
    job = user.job(f"{JOB}command: [bash, -c, '{words} srun -n 4 bash -c ''{inner}''']\n")
    output = user.completed(job)
    assert re.findall(r"started on (n\d) with (\d) hosts", output) == [(user.status()["attempts"][0]["nodes"][0], "2")]
    tasks = dict(re.findall(r"task (\d) of 4 on (n\d)", output))
    assert tasks["0"] == tasks["1"] != tasks["2"] == tasks["3"]


@pytest.mark.prove  # so does a cancelled training in the other tests of Slurm
def test_a_cancelled_run_leaves_no_process_behind(user: User) -> None:
    job = user.job(f"{JOB}command: [bash, -c, 'sleep 302 & srun -n 4 sleep 303; wait']\n")
    assert user.launch("submit", job).returncode == 0
    job_id = user.until("@last", "RUNNING", "STARTING")["job_id"]
    assert user.launch("cancel", "@last").returncode == 0
    user.until("@last", "CANCELLED")
    wait_until(lambda: not any(line.startswith(f"{job_id} ") for line in user.cluster.jobs() or []))
    for node in ("n1", "n2", "n3", "n4"):
        for seconds in ("302", "303"):
            assert user.cluster.node_exec(node, ["pgrep", "-fx", f"sleep {seconds}"]).returncode == 1
