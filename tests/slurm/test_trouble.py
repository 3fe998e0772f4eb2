"""Runs on a Slurm in trouble, in a hostile shell, or started by hand: what the user sees, and what really ran."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.slurm.user import User


def test_each_way_of_asking_for_gpus_gives_the_job_its_devices(user: User) -> None:
    runs = {}
    for dialect in ("gpus-per-node", "gres", "gres-type"):
        user.site("", ("gpu_vendor: nvidia", f"gpu_vendor: nvidia, gpu_request: {dialect}"))
        job = "name: gpus\nlauncher: srun\ngpus_per_node: 2\ncpus_per_node: 2\ncommand: printenv CUDA_VISIBLE_DEVICES\n"
        runs[dialect] = user.submit(job)
    for dialect, run in runs.items():
        assert user.until(run["run"], "COMPLETED", "FAILED")["state"] == "COMPLETED", dialect
        option = {"gpus-per-node": "gpus-per-node=2", "gres": "gres=gpu:2", "gres-type": "gres=gpu:a100:2"}[dialect]
        assert f"#SBATCH --{option} " in Path(run["script"]).read_text()
        for rank in (0, 1):
            log = Path(run["folder"]) / "attempts" / "001" / "logs" / f"node-0.rank-{rank}.log"
            devices = log.read_text().strip().split(",")
            assert len(set(devices)) == 2, (dialect, rank, devices)


def test_a_submission_from_inside_another_job_is_not_influenced_by_it(user: User) -> None:
    hostile = {
        "SBATCH_PARTITION": "nowhere",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_ACCOUNT": "nobody",
        "SBATCH_EXPORT": "NONE",
        "SLURM_NTASKS": "7",
        "SLURM_NPROCS": "7",
        "SLURM_CPUS_PER_TASK": "5",
        "SLURM_MEM_PER_NODE": "1",
        "SRUN_CPUS_PER_TASK": "5",
        "SQUEUE_PARTITION": "nowhere",
        "SQUEUE_FORMAT": "%i",
    }
    # Options are kept from the environment of the step as well: they are for the command in it alone.
    command = "command: [sh, -c, 'echo tasks=$SLURM_NTASKS export=$SHOULD_COME; sleep 5']"
    job = user.job(f"name: inner\nlauncher: srun\ncpus_per_node: 1\nprocesses_per_node: 1\n{command}\n")
    inside = ["env", *(f"{name}={value}" for name, value in hostile.items()), "SHOULD_COME=yes"]
    outer = ["srun", "--partition=gpu", "--ntasks=1", "--time=5"]

    done = user.cluster.run([*outer, *inside, "hpc-launch", "submit", job, "--json"], cwd=user.home, env=user.env)

    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    shown = user.cluster.run(["scontrol", "show", "job", run["job_id"]], check=True).stdout
    for fact in ("Partition=gpu", "TimeLimit=00:10:00", "NumTasks=1", "CPUs/Task=1"):
        assert fact in shown
    status = user.launch("status", run["run"], "--json", env=hostile)
    assert json.loads(status.stdout)["state"] in {"PENDING", "STARTING", "RUNNING", "COMPLETED"}
    assert user.until(run["run"], "COMPLETED", "FAILED")["state"] == "COMPLETED"
    assert "tasks=1 export=yes" in user.launch("logs", run["run"]).stdout


def test_a_secret_reaches_the_training_and_nothing_else(user: User) -> None:
    secret = "s3cr3t-" + hashlib.sha256(str(user.home).encode()).hexdigest()
    seen = f"sh -c 'printf %s \"$MY_TOKEN\" | sha256sum; until [ -e {user.home}/go ]; do sleep 0.2; done'"
    job = user.job(f"name: secret\nlauncher: srun\ncpus_per_node: 1\nsecrets: [MY_TOKEN]\ncommand: {seen}\n")

    done = user.launch("submit", job, "--json", env={"MY_TOKEN": secret})

    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    user.until(run["run"], "RUNNING", "STARTING")
    for command in (
        ["scontrol", "show", "job", "-dd", run["job_id"]],
        ["scontrol", "write", "batch_script", run["job_id"], "-"],
        ["squeue", "-o", "%all", "-j", run["job_id"]],
        ["ps", "-eo", "args"],
    ):
        told = user.cluster.run(command, check=True).stdout
        assert told
        assert secret not in told, command
    user.job("", "go")
    assert user.until(run["run"], "COMPLETED", "FAILED")["state"] == "COMPLETED"
    assert hashlib.sha256(secret.encode()).hexdigest() in user.launch("logs", run["run"]).stdout
    told = user.cluster.run(["sacct", "-P", "-o", "ALL", "-j", run["job_id"]], check=True).stdout
    assert secret not in told + done.stdout + done.stderr
    # Neither the run folder nor the state, cache and configuration folders beside it.
    found = user.cluster.run(["grep", "-rlaF", secret, str(user.home)])
    assert (found.returncode, found.stdout) == (1, "")

    again = user.launch("resubmit", run["run"], "--yes")
    assert again.returncode == 3
    assert "MY_TOKEN" in again.stderr


def test_a_script_started_by_hand_makes_its_own_attempt_and_trains_once(user: User) -> None:
    words = shlex.quote(f"echo $SLURM_JOB_ID >>{user.marker}")
    job = user.job(f"name: hand\nlauncher: srun\ncpus_per_node: 1\ncommand: [sh, -c, {words}]\n")
    script = user.home / "hand.sh"
    assert user.launch("render", job, "-o", str(script)).returncode == 0

    first = by_hand(user, script)
    attempt = user.home / "runs" / f"hand-by-hand-{first}" / "attempts" / "001"
    second = by_hand(user, script, str(attempt))

    assert json.loads((attempt / "end.json").read_text())["exit_code"] == 0
    assert (attempt / "claim").read_text().split() == [first]
    assert user.trainings() == [first]
    shown = user.cluster.run(["scontrol", "show", "job", second], check=True).stdout
    assert "ExitCode=75:0" in shown
    said = (user.home / f"hand-{second}.out").read_text()
    assert re.search(rf"not for job {second} but for: {first}\. Nothing was started", said)


def by_hand(user: User, script: Path, *arguments: str) -> str:
    """Submit a script as a person would, and wait until its job is over."""
    done = user.cluster.run(["sbatch", "--parsable", script, *arguments], cwd=user.home, env=user.env, check=True)
    job_id = done.stdout.strip()
    wait_until(lambda: is_over(user.cluster, job_id), explain=lambda: f"job {job_id}: {user.cluster.jobs()}")
    return job_id


def is_over(cluster: Cluster, job_id: str) -> bool:
    """Whether a job has left the queue."""
    lines = cluster.jobs()
    return lines is not None and not any(line.startswith(f"{job_id} ") for line in lines)


def test_folders_that_cannot_be_read_or_written(user: User) -> None:
    good = user.job("name: x\ncommand: 'true'\n")
    closed = user.job("name: x\ncommand: 'true'\n", "closed/job.yaml")
    script = user.job("name: x\nscript: closed/train.py\n", "script.yaml")
    user.cluster.run(["chmod", "0", user.home / "closed"], check=True)
    refused = {
        (closed,): f"{closed}: HL001 cannot read the file: permission denied",
        (script,): f"{script}:2:9: HL201 ",
        (good, "--set", "run_dir=closed"): "HL501 cannot write the run folder",
        (good, "--set", "run_dir=closed/deep/er"): "HL501 cannot write the run folder",
        (good, "--set", "run_dir=/"): "HL501 cannot write the run folder /: Permission denied",
        (good, "--set", "run_dir=job.yaml"): "HL501 cannot write the run folder",
        (good, "--set", "run_dir=/proc"): "HL501 cannot write the run folder",
        (good, "--set", "workdir=closed/work"): "HL201 ",
    }
    for words, said in refused.items():
        done = user.launch("submit", *words)
        assert (done.returncode, done.stdout) == (3, ""), (words, done.stderr)
        assert said in done.stderr
        assert "hint: " in done.stderr
    assert user.launch("list", "--json").stdout.strip() == "[]"
    assert not (user.home / "runs").exists()


# --- `hpc-launch run`: the same job inside an allocation that one already has ---

INSIDE = (
    "name: inside\nlauncher: srun\nnodes: 2\nprocesses_per_node: 2\n"
    "command: sh -c 'echo rank $RANK of $WORLD_SIZE in job $SLURM_JOB_ID'\n"
)


def test_twice_in_one_allocation(user: User) -> None:
    job = user.job(INSIDE)
    script = f"hpc-launch run {job} && hpc-launch run {job} --set name=again"
    done = user.cluster.run(
        ["salloc", "--nodes=2", "--cpus-per-task=4", "bash", "-c", script], cwd=user.home, env=user.env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (user.launch("logs", name).stdout for name in ("inside", "again"))
    for rank in range(4):
        assert f"rank {rank} of 4 in job" in first
        assert f"rank {rank} of 4 in job" in second
    jobs = {line.rsplit(" ", 1)[1] for line in (first + second).splitlines() if " in job " in line}
    assert len(jobs) == 1, "both in the same allocation"
    assert user.status("inside")["state"] == user.status("again")["state"] == "COMPLETED"


def test_an_allocation_of_another_size(user: User) -> None:
    done = user.cluster.run(
        ["salloc", "--cpus-per-task=2", "hpc-launch", "run", user.job(INSIDE)], cwd=user.home, env=user.env
    )
    assert done.returncode == 1
    assert "expected 2 nodes, got 1" in user.launch("logs", "@last").stdout


def test_without_an_allocation(user: User) -> None:
    done = user.launch("run", user.job(INSIDE))
    assert done.returncode == 2
    assert "salloc" in done.stderr
    assert not (user.home / "runs").exists()
