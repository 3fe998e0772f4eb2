"""The node check before the training, and `doctor`, on a real Slurm: healthy nodes pass, a planted fault is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.marks import prove
from tests.slurm.user import User

QUICK = "name: checked\npreflight: quick\nlauncher: srun\ncpus_per_node: 1\nretry: {backoff: 1s}\n"
NO_TORCH = "environment: {python: /usr/bin/python3}\n"
"""The check would measure with PyTorch on each node."""


def outcome(run: dict[str, Any], attempt: int = 1) -> dict[str, Any]:
    """The record of the node check."""
    text = (Path(run["folder"]) / "attempts" / f"{attempt:03d}" / "node-check.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_node_that_fails_is_named_and_the_run_continues_elsewhere(user_in_trouble: User) -> None:
    user = user_in_trouble
    with user.little_shared_memory("n1"):
        run = user.submit(f"{QUICK}nodes: 2\ncommand: [sh, -c, 'echo trained']\n")
        status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")

    first, second = status["attempts"]
    assert (first["class"], first["verdict"]) == ("node_failure", "RETRY_ELSEWHERE"), status
    assert "/dev/shm has 1 MiB left" in str(first["evidence"])
    assert "n1" in first["nodes"]
    assert "n1" not in second["nodes"]
    assert status["state"] == "COMPLETED", status
    assert "n1" in user.launch("nodes", "list").stdout


SMI = """#!/bin/bash
# Stands in for nvidia-smi: shows the GPUs that Slurm gave to the step.
IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
case $* in *query-gpu=index,count*) printf "%s, ${#gpus[@]}, NVIDIA A100, 0, 550\\n" "${gpus[@]}" ;; *) exit 2 ;; esac
"""


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["cluster", prove("cluster_sid")])
def test_all_gpus_are_counted_where_they_are_requested_by_task(request: pytest.FixtureRequest, kind: str) -> None:
    cluster: Cluster = request.getfixturevalue(kind)
    user = User(cluster, cluster.user_folder("per-task-"))
    user.site("", ("gpus: 4,", "gpus: 4, gpu_request: gpus-per-task,"))
    Path(user.job(SMI, "bin/nvidia-smi")).chmod(0o755)
    path = f"{{PATH: '{user.home / 'bin'}:{cluster.environment()['PATH']}'}}"
    job = f"{QUICK}{NO_TORCH}nodes: 2\ngpus_per_node: 4\nprocesses_per_node: 4\nenv: {path}\n"
    run = user.submit(f"{job}command: [sh, -c, 'echo trained']\n")
    assert user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")["state"] == "COMPLETED"
    found = outcome(run)
    assert (found["bad"], found["common"], "gpus" in found["not_checked"]) == ([], [], False), found


# --- doctor: the queue's estimate, and the nodes by a short job ---

JOB = f"{QUICK}nodes: 2\ncommand: [sh, -c, 'echo trained >>$HPC_LAUNCH_RUN_DIR/trained']\n"


def test_every_level_passes_and_the_training_does_not_start(user: User) -> None:
    done = user.launch("doctor", user.job(JOB), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    levels = json.loads(done.stdout)
    assert {level["name"]: level["state"] for level in levels} == {
        "job": "ok",
        "imports": "not checked",  # a command imports nothing
        "limits": "ok",
        "reservations": "ok",
        "queue": "ok",
        "nodes": "ok",
    }
    lines = {level["name"]: level["lines"] for level in levels}
    assert "Slurm enforces no limits of accounts and QOS (AccountingStorageEnforce=none)" in lines["limits"]
    assert "to start at" in lines["queue"][0]
    assert "2 nodes passed" in lines["nodes"][-1]
    assert not list(user.home.glob("runs/*/trained"))


def test_without_accounting_limits_are_not_checked(user_without_accounting: User) -> None:
    user = user_without_accounting
    done = user.launch("doctor", user.job(JOB), "--json", "--no-job")
    assert done.returncode == 0, done.stdout + done.stderr
    limits = next(level for level in json.loads(done.stdout) if level["name"] == "limits")
    assert limits["state"] == "not checked"
    assert "not checked: account and QOS: Slurm keeps no accounting here" in limits["lines"]


def test_a_maintenance_and_a_limit_of_the_partition_are_named(user_in_trouble: User) -> None:
    user = user_in_trouble
    reserve = "scontrol create reservation=maint starttime=now+30minutes duration=60 users=root flags=maint nodes=ALL"
    user.cluster.run(reserve.split(), user="root", check=True)
    try:
        delayed = user.launch("doctor", user.job(JOB), "--no-job", "--set=time=00:59:00")
        early = user.launch("doctor", user.job(JOB), "--no-job", "--set=time=00:10:00")
    finally:
        user.cluster.run(["scontrol", "delete", "reservation=maint"], user="root", check=True)
    assert "warning: reservation maint (MAINT" in delayed.stdout, delayed.stdout + delayed.stderr
    assert "has 4 of 4 nodes" in delayed.stdout
    assert "no reservation of the partition's nodes" in early.stdout, early.stdout + early.stderr


@pytest.mark.torch
@pytest.mark.prove
@pytest.mark.slow
def test_the_network_between_three_nodes_is_measured_kept_and_compared(user: User) -> None:
    job = user.job(f"{QUICK}nodes: 3\nprocesses_per_node: 1\nscript: nothing.py\n")
    user.cluster.write(user.home / "nothing.py", "")
    first = user.launch("doctor", job, "--bench", "--json")
    assert first.returncode == 0, first.stdout + first.stderr
    bench = json.loads(first.stdout)[-1]
    measured = bench["values"]["measured"]
    assert measured["nodes"] == ["n1", "n2", "n3"]
    assert sorted(pair[:2] for pair in measured["pairs"]) == [[0, 1], [0, 2], [1, 2]]
    assert set(measured["curves"]) | set(measured["not_measured"]) == {"all-reduce", "all-gather", "reduce-scatter"}
    assert "first measurement of 3 nodes x 1 process with gloo on this site" in bench["lines"]
    folder = user.home / "state" / "hpc-launch" / "bench" / "testcluster"
    assert len(list(folder.glob("*.json"))) == 1

    again = user.launch("doctor", job, "--bench")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "the run of 2" in again.stdout
    assert "n1" not in user.launch("nodes", "list").stdout


def test_a_bad_node_is_named_before_the_real_job_waits(user_in_trouble: User) -> None:
    user = user_in_trouble
    with user.little_shared_memory("n2"):
        done = user.launch("doctor", user.job(JOB + NO_TORCH), "--set=nodes=4")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "nodes         failed       n2: /dev/shm has 1 MiB left" in done.stdout
