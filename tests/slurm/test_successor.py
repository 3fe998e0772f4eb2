"""The run's next job waits in the queue, and takes over with no client running, on a real Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.slurm.test_restart import FAILS_ONCE, LOSES_POWER, ended, job, record, trained
from tests.slurm.user import User

ON = {"successor": "on", "in_allocation": "off"}
"""The test cluster's jobs are too short for `auto`."""


def successor(run: dict[str, Any], number: int) -> dict[str, Any]:
    """What the run folder says of the successor of an attempt."""
    return record(run, number, "successor.json")


def log(run: dict[str, Any], number: int) -> str:
    path = Path(run["folder"], f"attempts/{number:03d}/successor/batch.log")
    return path.read_text() if path.exists() else ""


def state(user: User, job_id: str) -> str:
    done = user.cluster.run(["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"], check=True)
    return done.stdout.strip()


def test_the_successor_takes_over_and_is_cancelled_at_the_end(user: User) -> None:
    run = user.submit(job(user, FAILS_ONCE, nodes=2, retry=ON))
    first = successor(run, 1)["job_id"]
    assert user.status(run["run"])["successor"]["job_id"] == first

    wait_until(lambda: ended(run, 2), 120, lambda: log(run, 1))

    status = user.until(run["run"], "COMPLETED", "FAILED")
    assert [(one["state"], one["verdict"], one["job_id"]) for one in status["attempts"]] == [
        ("FAILED", "RETRY", run["job_id"]),
        ("COMPLETED", "NONE", first),
    ]
    assert sorted(row[:3] for row in trained(run)) == [
        [attempt, rank, job_id] for attempt, job_id in (("1", run["job_id"]), ("2", first)) for rank in "0123"
    ]
    second = successor(run, 2)["job_id"]
    assert second not in (run["job_id"], first)
    wait_until(lambda: state(user, second) in ("CANCELLED", ""), 30)
    assert not log(run, 2)


def test_the_successor_of_a_finished_run_ends_within_a_second(user: User) -> None:
    run = user.submit(job(user, FAILS_ONCE, nodes=1, launcher="srun", retry={"successor": "on"}))
    path = Path(run["folder"], "attempts/001/successor.json")
    waits = successor(run, 1)["job_id"]
    # A submitter that was killed could not note the id.
    user.cluster.run(["sed", "-i", "/job_id/d", str(path)], check=True)

    wait_until(lambda: "nothing" in log(run, 1) or "finished" in log(run, 1), 120, lambda: f"{user.cluster.jobs()}")

    assert log(run, 1).endswith("the run is finished\n")
    assert [one["job_id"] for one in user.status(run["run"])["attempts"]] == [run["job_id"], run["job_id"]]
    query = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={waits}", "--format=ElapsedRaw"]
    wait_until(lambda: user.cluster.run(query).stdout.strip() != "", 30)
    assert int(user.cluster.run(query, check=True).stdout) <= patience(2)


def test_cancel_leaves_no_successor(user: User) -> None:
    run = user.submit(job(user, LOSES_POWER, retry=ON))
    waits = successor(run, 1)["job_id"]

    done = user.launch("cancel", run["run"])

    assert waits in done.stdout
    wait_until(lambda: state(user, waits) in ("CANCELLED", ""), 30)
    assert "successor" not in user.until(run["run"], "CANCELLED")


@pytest.mark.cluster
@pytest.mark.slow
def test_the_first_node_loses_power_and_no_client_is_there() -> None:
    with Cluster.start(nodes=4) as cluster:
        user = User(cluster, cluster.user_folder("successor-"))
        run = user.submit(job(user, LOSES_POWER, nodes=2, launcher="srun", retry={"successor": "on"}))
        waits = successor(run, 1)["job_id"]
        wait_until(lambda: len(trained(run)) == 4, 60)
        cluster.kill_node("n1")

        wait_until(lambda: ended(run, 2), 180, lambda: f"{cluster.jobs()} {log(run, 1)}")

        status = user.until(run["run"], "COMPLETED", "FAILED")
        assert [(one["state"], one["class"], one["verdict"], one["job_id"]) for one in status["attempts"]] == [
            ("NODE_FAIL", "node_failure", "RETRY_ELSEWHERE", run["job_id"]),
            ("COMPLETED", "success", "NONE", waits),
        ]
        assert "n1" not in status["attempts"][1]["nodes"]
        began = min(float(row[3]) for row in trained(run) if row[0] == "2")
        assert began - status["attempts"][0]["ended"] <= patience(90)
        wait_until(lambda: cluster.jobs() == [], 60, lambda: f"{cluster.jobs()}")
