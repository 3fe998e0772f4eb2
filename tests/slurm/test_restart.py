"""Runs that continue inside their allocation, on a real Slurm: the same job, new attempts, and who trained when."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.marks import prove
from tests.slurm.user import SMALL, User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt" / "job.yaml"
FAILS_ONCE = """\
import json, os, subprocess, sys, time
attempt, rank, run = int(os.environ["HPC_LAUNCH_ATTEMPT"]), os.environ["RANK"], os.environ["HPC_LAUNCH_RUN_DIR"]
with open(f"{run}/trained", "a") as file:
    print(attempt, rank, os.environ["SLURM_JOB_ID"], time.time(), file=file, flush=True)
print("step 1/2", flush=True)
if rank == "0":
    with open(f"{run}/environment-{attempt}.json", "w") as file:
        json.dump({**os.environ, "umask": os.umask(0o22), "folder": os.getcwd()}, file)
if attempt == 1 and rank == "1":
    daemon = "cd $HPC_LAUNCH_RUN_DIR; while sleep 0.2; do date +%s.%N >.left; mv .left left; done"
    subprocess.Popen(["bash", "-c", f"( {daemon} ) & disown"], start_new_session=True)
if attempt == 1 and rank == "0":
    time.sleep(1)
    print("OSError: [Errno 116] Stale file handle: '/scratch/corpus/part-7.bin'", flush=True)
    sys.exit(1)
while attempt == 1:
    time.sleep(0.1)
print("step 2/2", flush=True)
"""
"""The first rank of the first attempt crashes; the others would go on for ever, one of them as a
daemon that has left its session."""

CHANGES = (
    "HPC_LAUNCH_ATTEMPT",
    "HPC_LAUNCH_ATTEMPT_DIR",
    "HPC_LAUNCH_STOP_FILE",
    "HPC_LAUNCH_DONE_FILE",
    "HPC_LAUNCH_PHASE_PIPE",
    "MASTER_PORT",
)
"""Variables that differ between two attempts in a job, besides those of the step and of torchrun."""


def job(user: User, program: str, **keys: Any) -> str:
    script = user.cluster.write(user.home / "train.py", program)
    wanted = {"name": "here", "nodes": 1, "processes_per_node": 2, "launcher": "torchrun", "script": str(script)}
    progress = {"step": r"step (\d+)/(\d+)"}
    return yaml.safe_dump({**wanted, "progress": progress, **keys})


def record(run: dict[str, Any], number: int, name: str) -> dict[str, Any]:
    path = Path(run["folder"], "attempts", f"{number:03d}", name)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def trained(run: dict[str, Any]) -> list[list[str]]:
    """(attempt, rank, job, time) of each process that got as far as the training."""
    path = Path(run["folder"], "trained")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def batch_logs(run: dict[str, Any]) -> str:
    """What the scripts and end hooks of all attempts said."""
    paths = sorted(Path(run["folder"]).rglob("attempts/**/*.log"))
    return "\n".join(f"{path.parent.name}/{path.name}:\n{path.read_text()}" for path in paths)


def environment(run: dict[str, Any], attempt: int) -> dict[str, Any]:
    """What the training of an attempt inherited, without what must differ."""
    values: dict[str, Any] = json.loads(Path(run["folder"], f"environment-{attempt}.json").read_text())
    own = ("SLURM_STEP", "SLURM_TASK_PID", "SLURM_SRUN", "SLURM_LAUNCH", "TORCHELASTIC", "PMI")
    return {name: value for name, value in values.items() if name not in CHANGES and not name.startswith(own)}


def ended(run: dict[str, Any], number: int) -> bool:
    return bool(record(run, number, "end.json"))


@pytest.mark.parametrize("launcher", ["srun", prove("torchrun")])
def test_a_rank_crashes_and_the_run_continues_in_the_same_job(user: User, launcher: str) -> None:
    run = user.submit(job(user, FAILS_ONCE, nodes=2, launcher=launcher))

    wait_until(lambda: ended(run, 2), explain=lambda: user.launch("logs", run["run"]).stdout)

    status = user.until(run["run"], "COMPLETED", "FAILED")
    states = [(one["state"], one["class"], one["verdict"], one["job_id"]) for one in status["attempts"]]
    assert states == [
        ("FAILED", "filesystem_error", "RETRY", run["job_id"]),
        ("COMPLETED", "success", "NONE", run["job_id"]),
    ]
    assert sorted(row[:3] for row in trained(run)) == [
        [attempt, rank, run["job_id"]] for attempt in "12" for rank in "0123"
    ]
    began = min(float(row[3]) for row in trained(run) if row[0] == "2")
    restarted = record(run, 2, "start.json")["started"] - record(run, 1, "end.json")["ended"]
    assert restarted <= patience(15), "what the training itself loads comes on top"
    assert float(Path(run["folder"], "left").read_text()) < began, "what is left of an attempt ends before the next one"
    assert environment(run, 1) == environment(run, 2)


def test_a_spare_replaces_a_node_that_fails_the_check(user_in_trouble: User) -> None:
    user = user_in_trouble
    with user.little_shared_memory("n2"):
        run = user.submit(job(user, FAILS_ONCE, nodes=2, spares=1, preflight="quick", exclude=["n4"], launcher="srun"))
        wait_until(lambda: ended(run, 2), explain=lambda: user.launch("logs", run["run"]).stdout)

    status = user.until(run["run"], "COMPLETED", "FAILED")
    assert [(one["nodes"], one["verdict"], one["job_id"]) for one in status["attempts"]] == [
        (["n1", "n2"], "RETRY_ELSEWHERE", run["job_id"]),
        (["n1", "n3"], "NONE", run["job_id"]),
    ]


@pytest.mark.prove
def test_spares_are_not_waited_for(user_in_trouble: User) -> None:
    user = user_in_trouble
    text = job(
        user,
        "print('step 2/2', flush=True)\n",
        nodes=2,
        spares=1,
        processes_per_node=1,
        exclude=["n3", "n4"],
        launcher="srun",
    )
    run = user.submit(text)
    status = user.until(run["run"], "COMPLETED", "FAILED", "STUCK", seconds=90)
    assert (status["state"], status["attempts"][0]["nodes"]) == ("COMPLETED", ["n1", "n2"]), batch_logs(run)


LOSES_POWER = """\
import os, time
attempt, rank, run = os.environ["HPC_LAUNCH_ATTEMPT"], os.environ["RANK"], os.environ["HPC_LAUNCH_RUN_DIR"]
with open(f"{run}/trained", "a") as file:
    print(attempt, rank, os.environ["SLURM_JOB_ID"], time.time(), file=file, flush=True)
print("step 1/2", flush=True)
while attempt == "1":
    time.sleep(0.1)
print("step 2/2", flush=True)
"""


@pytest.mark.cluster
@pytest.mark.prove
@pytest.mark.parametrize("system", [None, "trixie", "sid"])
def test_a_node_that_is_lost_while_the_others_end_well_is_no_success(system: str | None) -> None:
    program = (
        "import os, time\ntime.sleep(600 if os.environ['RANK'] + os.environ['HPC_LAUNCH_ATTEMPT'] == '11' else 4)\n"
    )
    with Cluster.start(nodes=4, system=system) as cluster:
        user = User(cluster, cluster.user_folder("well-"))
        run = user.submit(job(user, program, nodes=2, spares=1, processes_per_node=1, launcher="srun"))
        wait_until(lambda: all(Path(run["folder"], f"attempts/001/agent/beat-{node}").exists() for node in (0, 1)))
        cluster.kill_node("n2")

        wait_until(lambda: ended(run, 2), explain=lambda: batch_logs(run))

        status = user.until(run["run"], "COMPLETED", "FAILED")
        assert [(one["nodes"], one["class"], one["verdict"]) for one in status["attempts"]] == [
            (["n1", "n2"], "node_failure", "RETRY_ELSEWHERE"),
            (["n1", "n3"], "success", "NONE"),
        ]


@pytest.mark.cluster
@pytest.mark.prove
@pytest.mark.parametrize("system", [None, "trixie", "sid"])
def test_a_node_that_slurm_gives_up_before_the_step_begins(system: str | None) -> None:
    with Cluster.start(nodes=4, accounting=False, system=system) as cluster:
        user = User(cluster, cluster.user_folder("early-"))
        go = user.home / "go"
        waits = user.job(f"until [ -e {go} ]; do sleep 0.2; done\n", "waits.sh")
        program = "print('step 2/2', flush=True)\n"
        source = {"environment": {"source": [str(waits)]}}
        run = user.submit(job(user, program, nodes=2, spares=1, launcher="srun", exclude=["n4"], **source))
        wait_until(Path(run["folder"], "attempts/001/claim").exists)
        cluster.kill_node("n2")
        wait_until(lambda: any("n[1,3]" in line for line in cluster.jobs() or ()), 120, lambda: f"{cluster.jobs()}")
        user.cluster.run(["touch", str(go)], check=True)

        wait_until(lambda: ended(run, 2), explain=lambda: batch_logs(run))

        status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")
        assert [(one["nodes"], one["class"], one["verdict"], one["job_id"]) for one in status["attempts"]] == [
            (["n1", "n2"], "node_failure", "RETRY_ELSEWHERE", run["job_id"]),
            (["n1", "n3"], "success", "NONE", run["job_id"]),
        ]


def lost_start(cluster: Cluster, running: Path) -> None:
    """Kill the controller and bring it back with what it had saved while the job waited for its `begin`.

    It saves the state of jobs every 5 s at most, so that a crash loses what happened meanwhile.
    """
    state = cluster.layout.root / "spool" / "ctld" / "job_state"
    time.sleep(6)
    cluster.run(["cp", state, f"{state}.kept"], user="root", check=True)
    wait_until(running.exists)
    time.sleep(2)
    cluster.stop_controller(kill=True)
    cluster.run(["cp", f"{state}.kept", state], user="root", check=True)
    cluster.start_controller()


@pytest.mark.cluster
@pytest.mark.prove
@pytest.mark.parametrize("system", [None, "trixie", "sid"])
def test_a_job_that_slurm_cancels_because_its_controller_lost_the_start(system: str | None) -> None:
    with Cluster.start(nodes=2, gpus_per_node=0, system=system) as cluster:
        user = User(cluster, cluster.user_folder("lost-"))
        program = "import os, time\ntime.sleep(600 if os.environ['HPC_LAUNCH_ATTEMPT'] == '1' else 0)\n"
        keys = {"launcher": "srun", "processes_per_node": 1, "sbatch": {"begin": "now+9"}, "retry": {"backoff": "1s"}}
        run = user.submit(job(user, program, **keys))
        lost_start(cluster, Path(run["folder"], "attempts/001/claim"))

        assert user.launch("watch", run["run"], timeout=patience(90)).returncode == 0
        first, second = user.status(run["run"])["attempts"]
        assert (first["state"], first["class"], first["verdict"]) == ("CANCELLED", "node_failure", "RETRY")
        assert "its first step is older than its start" in first["evidence"][0]["text"]
        assert (second["class"], second["overrides"].get("exclude", [])) == ("success", [])
        why = json.loads(user.launch("why", run["run"], "--attempt", "1", "--json").stdout)
        assert (why["class"], why["cause"]) == ("node_failure", "controller_restart")

        # An administrator who cancels the job is obeyed, after a restart of the controller, too.
        run = user.submit(job(user, "import time\ntime.sleep(600)\n", **{**keys, "sbatch": {}}))
        wait_until(Path(run["folder"], "attempts/001/claim").exists)
        cluster.stop_controller(kill=False)
        cluster.start_controller()
        cluster.run(["scancel", run["job_id"]], user="root", check=True)
        assert user.launch("watch", run["run"], timeout=patience(60)).returncode == 1
        (only,) = user.status(run["run"])["attempts"]
        assert (only["class"], only["verdict"]) == ("cancelled_by_user", "STOP")


@pytest.mark.prove
@pytest.mark.torch
@pytest.mark.slow
def test_an_elastic_run_goes_on_with_fewer_nodes_in_its_job(user_in_trouble: User) -> None:
    user = user_in_trouble
    run = user.submit(job(user, LOSES_POWER, nodes="2..3", processes_per_node=1, exclude=["n4"]))
    wait_until(lambda: len(trained(run)) == 3)
    time.sleep(6)
    user.cluster.kill_node("n3")
    wait_until(lambda: ended(run, 2), explain=lambda: batch_logs(run))

    status = user.until(run["run"], "COMPLETED", "FAILED")
    assert [(one["nodes"], one["verdict"], one["job_id"]) for one in status["attempts"]] == [
        (["n1", "n2", "n3"], "RETRY_ELSEWHERE", run["job_id"]),
        (["n1", "n2"], "NONE", run["job_id"]),
    ]


@pytest.mark.prove
@pytest.mark.torch
@pytest.mark.slow
def test_torchrun_goes_on_from_three_nodes_to_two(user_in_trouble: User) -> None:
    user = user_in_trouble
    changes = {
        "nodes": "2..3",
        "processes_per_node": 1,
        "args.steps": 30,
        "args.sleep-per-step": 0.4,
        "args.checkpoint-every": 5,
        # A node that vanishes closes no connection: its peers give up after this time.
        "args.collective-timeout": 10,
        # torchrun continues by itself where no other attempt may follow in the job.
        "retry.in_allocation": "off",
    }
    run = user.launch("submit", str(EXAMPLE), *SMALL, *(f"--set={key}={value}" for key, value in changes.items()))
    assert run.returncode == 0, run.stderr
    wait_until(lambda: (user.status()["progress"]["step"] or 0) >= 10, every=1)
    assert user.status()["attempts"][0]["nodes"] == ["n1", "n2", "n3"]
    user.cluster.kill_node("n3")
    status = user.until("@last", "COMPLETED", "FAILED")
    assert status["state"] == "COMPLETED", status
    assert status["progress"]["step"] == 30
    log = user.launch("logs", "@last").stdout
    assert "world_size was 3 and is 2" in log
    assert "lost 1 of 3 nodes" in log
    # The accounting tells of the failed step some seconds later: the run ended well all the same.
    time.sleep(12)
    assert user.status()["state"] == "COMPLETED"


# --- A node that was cut off is still alive: its ranks are dead before those of the next attempt write ---

WRITES = """\
import os, time
attempt, rank, run = os.environ["HPC_LAUNCH_ATTEMPT"], os.environ["RANK"], os.environ["HPC_LAUNCH_RUN_DIR"]
print("step 1/2", flush=True)
while attempt == "1" or not os.path.exists(f"{run}/enough"):
    with open(f"{run}/written", "a") as file:
        print(attempt, rank, time.time(), os.uname().nodename, file=file, flush=True)
    time.sleep(0.1)
print("step 2/2", flush=True)
"""
"""Each rank writes for itself. The disk of the tests' cluster is there without a network."""


def written(run: dict[str, Any], attempt: str) -> list[float]:
    """When the ranks of an attempt wrote."""
    path = Path(run["folder"], "written")
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [float(row[2]) for row in rows if row[0] == attempt]


@pytest.mark.prove  # tests.agent.test_heartbeat has the fence of one node
@pytest.mark.slow
@pytest.mark.parametrize("spares", [1, 0])
def test_a_node_that_was_cut_off_does_not_write_beside_the_next_attempt(user_in_trouble: User, spares: int) -> None:
    user = user_in_trouble
    run = user.submit(job(user, WRITES, nodes=2, processes_per_node=1, spares=spares, exclude=["n4"], launcher="srun"))
    wait_until(lambda: len(written(run, "1")) > 20)
    watch = None if spares else user.popen("watch", run["run"])
    try:
        time.sleep(5)
        user.cluster.cut("n2")
        wait_until(
            lambda: len(written(run, "2")) > 50, explain=lambda: f"{user.status(run['run'])} {user.cluster.jobs()}"
        )
        user.cluster.mend("n2")
        time.sleep(15)
        user.cluster.run(["touch", f"{run['folder']}/enough"], check=True)
        status = user.until(run["run"], "COMPLETED", "FAILED")
    finally:
        if watch is not None:
            user.cluster.kill_tree(watch)
            watch.communicate()

    attempts = status["attempts"]
    assert [one["state"] for one in attempts][1:] == ["COMPLETED"], status
    assert (attempts[0]["job_id"] == attempts[1]["job_id"]) == bool(spares)
    assert max(written(run, "1")) < min(written(run, "2"))
