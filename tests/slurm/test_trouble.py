"""Runs on a Slurm in trouble, in a hostile shell, or started by hand: what the user sees, and what really ran."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.config import NAME
from tests.cluster.faults import PATIENCE_S, wait_until
from tests.cluster.plugin import _get
from tests.slurm.user import PROFILES, User

SLEEP = "name: sleep\nretry: 1\nlauncher: srun\ncpus_per_node: 1\ncommand: sleep 300\n"


@pytest.fixture
def user_of_the_forgetful(pytestconfig: pytest.Config) -> User:
    """A user where neither the controller nor an accounting database remembers a job that has ended."""
    cluster = _get(pytestconfig, "forgetful", nodes=1, accounting=False, min_job_age=2)
    return User(cluster, cluster.user_folder("forgotten-"))


def follow(user: User, job: str) -> tuple[subprocess.Popen[str], str]:
    """A `submit --wait` in the background, once its job's step runs without the controller, and the job's id."""
    waiting = user.popen("submit", user.job(job), "--wait")

    def started() -> list[Path]:
        assert waiting.poll() is None, waiting.communicate()
        return list(user.home.glob("runs/*/attempts/001/start.json"))

    wait_until(lambda: bool(started()))
    job_id = str(json.loads(started()[0].read_text())["job_id"])
    steps = ["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i"]
    wait_until(lambda: f"{job_id}.0" in user.cluster.run(steps).stdout.split())
    return waiting, job_id


def kill_batch_shell(user: User, job_id: str) -> None:
    listed = f"scontrol listpids {job_id} | awk '$3 == \"batch\" {{print $1}}'"
    user.cluster.node_exec("n1", ["sh", "-c", f"kill -9 $({listed})"])


@pytest.mark.prove
@pytest.mark.slow
def test_a_submission_and_a_cancel_outlast_a_controller_that_is_away(user_in_trouble: User) -> None:
    user, cluster = user_in_trouble, user_in_trouble.cluster
    user.site(f"\ndetect: [{{cluster: {NAME}}}]\n")
    marker = user.home / "trained"
    job = user.job(SLEEP.replace("sleep 300", f"sh -c 'echo $SLURM_JOB_ID >>{marker}'"))
    other = User(cluster, cluster.user_folder("cancelled-"))
    other_wait, job_id = follow(other, SLEEP)
    cluster.stop_controller()

    words = ["env", "-u", "HPC_LAUNCH_SITE", "hpc-launch", "submit", job]
    done = cluster.run(words, cwd=user.home, env=user.env)
    assert (done.returncode, "the Slurm controller is unreachable" in done.stderr) == (4, True), done.stderr
    done = other.launch("cancel", job_id)
    assert (done.returncode, "the request is on record" in done.stderr) == (4, True), done.stderr
    waiting = user.popen("submit", job, "--wait")
    wait_until(lambda: any("no answer" in path.read_text() for path in user.home.glob("runs/*/journal/*.jsonl")))

    cluster.start_controller()
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0, out + err
    assert "the scheduler does not answer" in err
    status = user.status()
    assert (status["state"], len(status["attempts"])) == ("COMPLETED", 1)
    assert user.trainings(marker) == [status["job_id"]]
    out, err = other_wait.communicate(timeout=PATIENCE_S)
    assert other_wait.returncode == 1, out + err
    status = other.status()
    assert status["state"] == "CANCELLED", status


def test_a_suspended_job_says_so(user: User) -> None:
    run = user.submit(SLEEP)
    user.until(run["run"], "RUNNING", "STARTING")
    assert user.cluster.run(["scontrol", "suspend", run["job_id"]], user="root").returncode == 0
    try:
        wait_until(
            lambda: "suspended" in (user.status(run["run"])["reason"] or ""),
            explain=lambda: f"{user.status()}",
            every=1,
        )
        assert user.status(run["run"])["state"] == "RUNNING"
    finally:
        user.cluster.run(["scontrol", "resume", run["job_id"]], user="root", check=True)
    user.launch("cancel", run["run"])
    assert user.until(run["run"], "CANCELLED")["state"] == "CANCELLED"


@pytest.mark.cluster
@pytest.mark.slow
def test_jobs_that_slurm_has_long_forgotten(user_of_the_forgetful: User) -> None:
    user = user_of_the_forgetful
    ends = {"good": ("'true'", "COMPLETED"), "bad": ("'false'", "FAILED"), "gone": ("sleep 300", "UNKNOWN")}
    runs = {
        name: user.submit(SLEEP.replace("sleep 300", command).replace("name: sleep", f"name: {name}"))
        for name, (command, _) in ends.items()
    }
    # Without a word of its own: its batch shell is killed.
    wait_until(lambda: (Path(runs["gone"]["folder"]) / "attempts" / "001" / "start.json").exists())
    kill_batch_shell(user, runs["gone"]["job_id"])

    def forgotten() -> bool:
        ids = [run["job_id"] for run in runs.values()]
        return all(user.cluster.run(["scontrol", "show", "job", one]).returncode != 0 for one in ids)

    wait_until(forgotten, explain=lambda: "still known", every=1)

    told = {name: user.status(run["run"]) for name, run in runs.items()}
    assert {name: status["state"] for name, status in told.items()} == {
        name: state for name, (_, state) in ends.items()
    }
    assert "does not know job" in told["gone"]["reason"]
    states = {entry["name"]: entry["state"] for entry in json.loads(user.launch("list", "--json").stdout)}
    assert states == {name: state for name, (_, state) in ends.items()}


def test_each_way_of_asking_for_gpus_gives_the_job_its_devices(user: User) -> None:
    text = (PROFILES / "testcluster.yaml").read_text()
    runs = {}
    for dialect in ("gpus-per-node", "gres", "gres-type"):
        changed = text.replace("name: testcluster", f"name: {dialect}")
        changed = changed.replace("gpu_vendor: nvidia", f"gpu_vendor: nvidia, gpu_request: {dialect}")
        user.job(changed, f"sites/{dialect}.yaml")
        job = "name: gpus\nlauncher: srun\ngpus_per_node: 2\ncpus_per_node: 2\ncommand: printenv CUDA_VISIBLE_DEVICES\n"
        runs[dialect] = user.submit(job, "--site", dialect)
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
    marker = user.home / "trained"
    words = shlex.quote(f"echo $SLURM_JOB_ID >>{marker}")
    job = user.job(f"name: hand\nlauncher: srun\ncpus_per_node: 1\ncommand: [sh, -c, {words}]\n")
    script = user.home / "hand.sh"
    assert user.launch("render", job, "-o", str(script)).returncode == 0

    first = by_hand(user, script)
    attempt = user.home / "runs" / f"hand-by-hand-{first}" / "attempts" / "001"
    second = by_hand(user, script, str(attempt))

    assert json.loads((attempt / "end.json").read_text())["exit_code"] == 0
    assert (attempt / "claim").read_text().split() == [first]
    assert user.trainings(marker) == [first]
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
