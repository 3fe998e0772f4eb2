"""The run's next job waits in the queue, and takes over with no client running, on a real Slurm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.retry import recover_run
from hpc_launch.runs.submitting import successor_job
from hpc_launch.runs.submitting.run_store import KILL_AFTER
from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.slurm.test_restart import FAILS_ONCE, LOSES_POWER, batch_logs, ended, job, record, trained
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
    run = user.submit(job(user, FAILS_ONCE, nodes=2, launcher="srun", retry=ON))
    first = successor(run, 1)["job_id"]
    assert user.status(run["run"])["successor"]["job_id"] == first

    wait_until(lambda: ended(run, 2), explain=lambda: log(run, 1))

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
    wait_until(lambda: state(user, second) in ("CANCELLED", ""))
    assert not log(run, 2)


def test_the_successor_of_a_finished_run_ends_within_a_second(user: User) -> None:
    run = user.submit(job(user, FAILS_ONCE, nodes=1, launcher="srun", retry={"successor": "on"}))
    path = Path(run["folder"], "attempts/001/successor.json")
    waits = successor(run, 1)["job_id"]
    # A submitter that was killed could not note the id.
    user.cluster.run(["sed", "-i", "/job_id/d", str(path)], check=True)

    wait_until(lambda: "nothing" in log(run, 1) or "finished" in log(run, 1), explain=lambda: f"{user.cluster.jobs()}")

    assert log(run, 1).endswith("the run is finished\n")
    assert [one["job_id"] for one in user.status(run["run"])["attempts"]] == [run["job_id"], run["job_id"]]
    query = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={waits}", "--format=ElapsedRaw"]
    wait_until(lambda: user.cluster.run(query).stdout.strip() != "")
    assert int(user.cluster.run(query, check=True).stdout) <= patience(2)


def test_cancel_leaves_no_successor(user: User) -> None:
    run = user.submit(job(user, LOSES_POWER, retry=ON))
    waits = successor(run, 1)["job_id"]

    done = user.launch("cancel", run["run"])

    assert waits in done.stdout
    wait_until(lambda: state(user, waits) in ("CANCELLED", ""))
    assert "successor" not in user.until(run["run"], "CANCELLED")


@pytest.mark.prove
@pytest.mark.cluster
@pytest.mark.slow
def test_an_expedited_requeue_comes_before_all_others_and_leaves_failures_to_the_verdict() -> None:
    conf = ["SlurmctldParameters=enable_expedited_requeue"]
    with Cluster.start(nodes=4, system="sid", slurm_conf=conf) as cluster:
        lost, fails, late = (User(cluster, cluster.user_folder(f"{name}-")) for name in ("lost", "fails", "late"))
        for user in (lost, fails, late):
            user.site("", ("scheduler: slurm", "scheduler: {type: slurm, requeue: expedite}"))
        limited = late.submit(job(late, LOSES_POWER, launcher="srun", time="00:01:00", retry=ON))
        crash = fails.submit(job(fails, FAILS_ONCE, launcher="srun", retry=ON))
        wait_until(lambda: ended(crash, 2), explain=lambda: f"{cluster.jobs()} {log(crash, 1)}")
        first, second = fails.until(crash["run"], "COMPLETED", "FAILED")["attempts"]
        assert (first["verdict"], second["job_id"]) == ("RETRY", successor(crash, 1)["job_id"])

        run = lost.submit(job(lost, LOSES_POWER, nodes=2, launcher="srun", retry={"successor": "on"}))
        wait_until(lambda: len(trained(run)) == 4)
        waits = ["sbatch", "--nodes=4", "--exclusive", "--time=30", "--output=/dev/null", "--wrap=true"]
        cluster.run(waits, user="bob", check=True)
        cluster.kill_node(lost.nodes()[0])

        wait_until(lambda: ended(run, 2), explain=lambda: f"{cluster.jobs()} {log(run, 1)}")
        status = lost.until(run["run"], "COMPLETED", "FAILED")
        assert [one["job_id"] for one in status["attempts"]] == [run["job_id"]] * 2
        assert sorted(row[:2] for row in trained(run)) == [[attempt, rank] for attempt in "12" for rank in "0123"]
        wait_until(lambda: state(lost, successor(run, 1)["job_id"]) in ("CANCELLED", "COMPLETED", ""))
        wait_until(lambda: ended(limited, 2), explain=lambda: f"{cluster.jobs()} {log(limited, 1)}")
        assert [one["verdict"] for one in late.status(limited["run"])["attempts"]][:1] == ["CONTINUE"]


BREAKS_A_GPU = """\
import os, sys
attempt, rank, node = int(os.environ["HPC_LAUNCH_ATTEMPT"]), os.environ["RANK"], os.uname().nodename
if attempt == 1 and rank == "1":
    print("RuntimeError: CUDA error: uncorrectable ECC error encountered", flush=True)
    sys.exit(1)
"""


@pytest.mark.cluster
@pytest.mark.prove
@pytest.mark.parametrize(("queued", "system"), [("on", None), ("off", None), ("on", "trixie"), ("on", "sid")])
def test_the_next_job_does_not_wait_for_a_lost_node(queued: str, system: str | None) -> None:
    with Cluster.start(nodes=7, accounting=False, system=system, slurm_conf=["SlurmdTimeout=300"]) as cluster:
        user = User(cluster, cluster.user_folder("lost-"))
        program = LOSES_POWER.replace('attempt == "1"', 'attempt in "12"')
        run = user.submit(job(user, program, nodes=2, spares=1, launcher="srun", retry={"successor": queued}))
        lost = 0.0
        for attempt, node in (("1", "n2"), ("2", "n3")):
            wait_until(lambda: sum(row[0] == attempt for row in trained(run)) == 4)  # noqa: B023
            time.sleep(6)
            cluster.kill_node(node)
            lost = time.time()
        wait_until(lambda: ended(run, 3), 200, lambda: f"{batch_logs(run)} {log(run, 1)} {cluster.jobs()}")

        status = user.until(run["run"], "COMPLETED", "FAILED")
        assert [(one["nodes"], one["verdict"], one["job_id"] == run["job_id"]) for one in status["attempts"]] == [
            (["n1", "n2"], "RETRY_ELSEWHERE", True),
            (["n1", "n3"], "RETRY_ELSEWHERE", True),
            (["n4", "n5"], "NONE", False),
        ]
        began = min(float(row[3]) for row in trained(run) if row[0] == "3")
        assert began - lost <= patience(60), "SlurmdTimeout is 300 s"


def test_the_successor_gets_no_node_that_failed(user: User) -> None:
    text = job(user, BREAKS_A_GPU, nodes=2, processes_per_node=1, launcher="srun", retry=ON)
    run = user.submit(text)
    waits = successor(run, 1)["job_id"]

    wait_until(lambda: ended(run, 2), explain=lambda: log(run, 1))

    status = user.until(run["run"], "COMPLETED", "FAILED")
    first, second = status["attempts"]
    assert (first["verdict"], first["nodes"][1:]) == ("RETRY_ELSEWHERE", second["overrides"]["exclude"])
    assert first["nodes"][1] not in second["nodes"]
    assert second["job_id"] == waits, "Slurm did not give it that node"


def test_scancel_ends_the_run_with_no_client(user: User) -> None:
    run = user.submit(job(user, LOSES_POWER, launcher="srun", retry=ON))
    wait_until(lambda: len(trained(run)) == 2)

    user.cluster.run(["scancel", run["job_id"]], check=True)

    wait_until(lambda: "nothing to start" in log(run, 1), explain=lambda: f"{user.cluster.jobs()}")
    status = user.status(run["run"])
    assert (status["state"], len(status["attempts"])) == ("CANCELLED", 1)


STEPS = (*recover_run.STEPS, *successor_job.CONTINUE_STEPS, *successor_job.SUCCESSOR_STEPS)


@pytest.mark.prove
@pytest.mark.slow
def test_a_successor_whose_driver_is_killed_at_any_step_loses_nothing_and_doubles_nothing(user: User) -> None:
    users = {step: User(user.cluster, user.cluster.user_folder(f"{step.replace(' ', '-')}-")) for step in STEPS}
    retry = {**ON, "no_progress": 9, "backoff": "1s"}
    runs = {}
    for step, one in users.items():
        run = runs[step] = one.submit(job(one, LOSES_POWER, launcher="srun", processes_per_node=1, retry=retry))
        after = Path(run["folder"], "after.sh")
        kill = f'case $2 in --successor*) export {KILL_AFTER}="{step}" ;; esac\n'
        one.cluster.write(after, after.read_text().replace("cd / &&", f"{kill}cd / &&"), 0o755)
    wait_until(lambda: all(trained(run) for run in runs.values()))
    for step, run in runs.items():
        users[step].cluster.run(["scancel", "--signal=KILL", "--batch", run["job_id"]], user="root", check=True)

    for step, run in runs.items():
        status = users[step].until(run["run"], "COMPLETED", "FAILED", "STOPPED", seconds=180)
        assert status["state"] == "COMPLETED", (step, status)
        second = [row[2] for row in trained(run)[1:]]
        assert len(second) == 1, (step, status)
    wait_until(lambda: user.cluster.jobs() == [], explain=lambda: f"{user.cluster.jobs()}")


@pytest.mark.prove
@pytest.mark.slow
def test_at_the_time_limit_the_successor_takes_over_while_a_client_waits(user: User) -> None:
    text = job(user, LOSES_POWER, launcher="srun", processes_per_node=1, time="00:01:00", retry={"successor": "on"})

    done = user.launch("submit", user.job(text), "--wait", timeout=240)

    assert done.returncode == 0, done.stdout + done.stderr
    status = user.status()
    first, second = status["attempts"]
    assert (first["class"], first["verdict"], second["state"]) == ("time_limit", "CONTINUE", "COMPLETED")
    folder = user.home / "runs" / status["run"]
    assert second["job_id"] == successor({"folder": folder}, 1)["job_id"]
