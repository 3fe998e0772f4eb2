"""Sweeps on a cluster: arrays, points that fail on their own, limits, cancellation."""

from __future__ import annotations

import json

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

pytestmark = pytest.mark.cluster


def train(loss: float, code: int = 0, sleep: float = 0) -> str:
    words = ["sh", "-c", 'echo "step 1/1 loss $0"; echo x >>"$HPC_LAUNCH_RUN_DIR/trained"; sleep $2; exit $1']
    return json.dumps([*words, str(loss), str(code), str(sleep)])


def job(points: list[str], more: str = "") -> str:
    return f"""
name: rates
launcher: none
time: 5
cpus_per_node: 1
hang: false
retry: {{max_attempts: 1}}
progress: {{step: 'step (\\d+)/(\\d+)', loss: 'loss (\\S+)'}}
sweep:
  grid: {{command: [{", ".join(points)}]}}
{more}"""


def limit_to_three_jobs(user: User) -> None:
    """In a partition that no other test uses: all jobs of the user count."""
    user.site("", ("    partition: gpu\n", "    partition: high\n    max_submitted: 3\n"))


def tasks(user: User, array: str) -> list[str]:
    """The tasks of an array."""
    done = user.cluster.run(["squeue", "--array", "--states=all", "--noheader", "--format=%F %K"], check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(f"{array} ")]


def test_points_run_as_one_array_and_fail_on_their_own(user: User) -> None:
    done = user.launch("submit", user.job(job([train(3), train(1), train(2, code=4)])), "--wait", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    submitted = json.loads(done.stdout)
    assert (submitted["points"], submitted["left"], len(submitted["jobs"])) == (3, 0, 1)
    name, array = submitted["run"], submitted["job_id"]
    sweep = user.status(name)
    assert sweep["counts"] == {"FAILED": 1, "COMPLETED": 2}
    assert sweep["best"]["point"] == 1
    assert [one["job_id"] for one in sweep["points"]] == [f"{array}_{task}" for task in range(3)]
    assert tasks(user, array) == [f"{array} {task}" for task in range(3)]

    # A point is a run with its own log, diagnosis and next attempt.
    assert "loss 2" in user.launch("logs", f"{name}/2").stdout
    assert user.launch("why", f"{name}/2").returncode == 1
    assert user.status(f"{array}_1")["run"] == f"{name}/1"
    listed = user.launch("list", "--json")
    assert [(one["run"], one["state"]) for one in json.loads(listed.stdout)] == [(name, "FAILED")]
    trained = user.cluster.run(["sh", "-c", f"cat {user.home}/runs/{name}/*/trained | wc -l"], check=True)
    assert trained.stdout.split() == ["3"]

    # What is over is not read again, until a point gets another attempt.
    user.cluster.run(["sh", "-c", f"mv {user.home}/runs/{name}/{name}.0 {user.home}"], check=True)
    assert json.loads(user.launch("list", "--json").stdout)[0]["reason"] == json.loads(listed.stdout)[0]["reason"]
    user.cluster.run(["sh", "-c", f"mv {user.home}/{name}.0 {user.home}/runs/{name}"], check=True)
    assert user.launch("resubmit", f"{name}/2", "--json").returncode == 0
    assert json.loads(user.launch("list", "--json").stdout)[0]["state"] != "FAILED"


@pytest.mark.prove
def test_ending_points_submit_the_rest_unattended(user: User) -> None:
    limit_to_three_jobs(user)
    own = ["sbatch", "--partition=high", "--array=0-1", "--output=/dev/null", "--wrap=sleep 15"]
    user.cluster.run(own, check=True)
    submitted = user.submit(job([train(number, code=number == 1) for number in range(5)]))
    assert (submitted["points"], submitted["left"]) == (5, 4)
    folder = user.home / "runs" / submitted["run"]
    wait_until(lambda: len(list(folder.glob("*/attempts/001/end.json"))) == 5)
    assert (folder / "submitted").exists()
    assert [path.read_text() for path in sorted(folder.glob("*/trained"))] == ["x\n"] * 5
