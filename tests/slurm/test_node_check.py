"""The node check before the training, on a real Slurm: healthy nodes pass, and each planted fault is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.marks import prove
from tests.slurm.user import PROFILES, User

QUICK = "name: checked\npreflight: quick\nlauncher: srun\ncpus_per_node: 1\nretry: {backoff: 1s}\n"


def outcome(run: dict[str, Any], attempt: int = 1) -> dict[str, Any]:
    """The record of the node check."""
    text = (Path(run["folder"]) / "attempts" / f"{attempt:03d}" / "node-check.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_node_that_fails_is_named_and_the_run_continues_elsewhere(user_in_trouble: User) -> None:
    user = user_in_trouble
    user.cluster.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm"], user="root", node="n1", check=True)
    try:
        run = user.submit(f"{QUICK}nodes: 2\ncommand: [sh, -c, 'echo trained']\n")
        status = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")
    finally:
        user.cluster.run(["umount", "/dev/shm"], user="root", node="n1", check=True)

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
    profile = (PROFILES / "testcluster.yaml").read_text()
    user.job(profile.replace("gpus: 4,", "gpus: 4, gpu_request: gpus-per-task,"), "sites/testcluster.yaml")
    Path(user.job(SMI, "bin/nvidia-smi")).chmod(0o755)
    path = f"{{PATH: '{user.home / 'bin'}:{cluster.environment()['PATH']}'}}"
    job = f"{QUICK}nodes: 2\ngpus_per_node: 4\nprocesses_per_node: 4\nenv: {path}\ncommand: [sh, -c, 'echo trained']\n"
    run = user.submit(job)
    assert user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")["state"] == "COMPLETED"
    found = outcome(run)
    assert (found["bad"], found["common"], "gpus" in found["not_checked"]) == ([], [], False), found
