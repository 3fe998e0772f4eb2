"""A login node whose own cluster is not the one that the job goes to: two real controllers with one database."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

FRONT = {
    "ClusterName": "front",
    "StateSaveLocation": "{root}/front/state",
    "SlurmctldPidFile": "{root}/front/pid",
    "SlurmctldLogFile": "{root}/log/front.log",
    "NodeName": "NodeName=f1 NodeAddr=10.77.0.254 Port=16818 CPUs=1 State=DOWN",
}
"""What the login's own cluster has in place of the lines of the other; its only node is never there."""


@pytest.fixture
def login(user: User) -> Iterator[dict[str, str]]:
    """The environment of a user whose default cluster is `front`."""
    cluster = user.cluster
    folder = cluster.layout.root / "front"
    folder.mkdir(exist_ok=True)
    lines = []
    for line in (cluster.layout.config / "slurm.conf").read_text().splitlines():
        key = line.partition("=")[0]
        new = FRONT.get(key, line).format(root=cluster.layout.root)
        lines.append(new if new == line or new.startswith(key) else f"{key}={new}")
    text = "\n".join([*lines, "SlurmctldPort=16817", ""]).replace("Nodes=n[1-4]", "Nodes=f1")
    (folder / "slurm.conf").write_text(text)
    for name in ("gres.conf", "cgroup.conf"):
        (folder / name).write_bytes((cluster.layout.config / name).read_bytes())
    own = {"SLURM_CONF": str(folder / "slurm.conf")}
    quiet = subprocess.DEVNULL
    controller = cluster.popen(["slurmctld", "-D"], user="root", env=own, stdout=quiet, stderr=quiet)
    try:
        wait_until(lambda: cluster.run(["sinfo"], env=own).returncode == 0)
        named = ["sacctmgr", "--noheader", "list", "cluster", "format=cluster,controlport"]
        wait_until(lambda: "16817" in cluster.run(named).stdout)
        yield own
    finally:
        controller.terminate()
        controller.wait()
        cluster.run(["sacctmgr", "-i", "delete", "cluster", "front"], user="root")


@pytest.mark.prove
def test_a_job_of_another_cluster_is_followed_there(user: User, login: dict[str, str]) -> None:
    """squeue, sacct, scontrol and scancel of the login's own cluster know nothing of it."""
    # The job's own shell is on the other cluster, whose configuration is in the usual place.
    user.site("sbatch: {add: {clusters: testcluster}}\nprelude: [{unset: [SLURM_CONF]}]\n")
    job = "name: far\nnodes: 2\nlauncher: none\ncommand: sh -c 'sleep 1; exit 3'\nretry: 1\n"
    done = user.launch("submit", user.job(job), "--wait", env=login)
    assert done.returncode == 1, done.stdout + done.stderr
    status = json.loads(user.launch("status", "@last", "--json", env=login).stdout)
    assert (status["state"], status["attempts"][0]["exit_code"]) == ("FAILED", 3)
    job_id = status["job_id"]
    assert user.cluster.run(["squeue", f"--jobs={job_id}"], env=login).returncode != 0, "the login's cluster has it"
    run = json.loads(user.launch("submit", user.job(job.replace("sleep 1", "sleep 600")), "--json", env=login).stdout)
    wait_until(lambda: _state(user, login) in ("STARTING", "RUNNING"), 40, lambda: _state(user, login))
    done = user.launch("cancel", run["run"], env=login)
    assert done.returncode == 0, done.stderr
    shown = user.cluster.run(["squeue", "--noheader", "--format=%T", f"--jobs={run['job_id']}", "--states=all"])
    assert shown.stdout.strip() in ("CANCELLED", "COMPLETING"), shown.stdout + shown.stderr


def _state(user: User, login: dict[str, str]) -> str:
    state: str = json.loads(user.launch("status", "@last", "--json", env=login).stdout)["state"]
    return state
