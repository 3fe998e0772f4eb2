"""`doctor` on a real Slurm: the queue's estimate, and the nodes by a short job."""

from __future__ import annotations

import json

from tests.slurm.test_node_check import QUICK
from tests.slurm.user import User

JOB = f"{QUICK}nodes: 2\ncommand: [sh, -c, 'echo trained >>$HPC_LAUNCH_RUN_DIR/trained']\n"


def test_every_level_passes_and_the_training_does_not_start(user: User) -> None:
    done = user.launch("doctor", user.job(JOB), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    levels = json.loads(done.stdout)
    assert [(level["name"], level["state"]) for level in levels] == [("job", "ok"), ("queue", "ok"), ("nodes", "ok")]
    assert "to start at" in levels[1]["lines"][0]
    assert "2 nodes passed" in levels[2]["lines"][-1]
    assert not list(user.home.glob("runs/*/trained"))


def test_a_bad_node_is_named_before_the_real_job_waits(user_in_trouble: User) -> None:
    user = user_in_trouble
    user.cluster.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm"], user="root", node="n2", check=True)
    try:
        done = user.launch("doctor", user.job(JOB), "--set=nodes=4")
    finally:
        user.cluster.run(["umount", "/dev/shm"], user="root", node="n2", check=True)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "nodes       failed       n2: /dev/shm has 1 MiB left" in done.stdout
