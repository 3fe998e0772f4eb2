"""The examples with several programs in one job, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.requirements import REPOSITORY


def completed(tmp_path: Path, job: str, *sets: str) -> str:
    """The logs of all roles of an example's run, after its good end."""
    words = [sys.executable, "-m", "hpc_launch", "submit", str(REPOSITORY / "examples" / job), "--site=local", "--wait"]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    done = subprocess.run(
        [*words, *(f"--set={one}" for one in sets)],
        env={**os.environ, "HPC_LAUNCH_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = [one.read_text(errors="replace") for one in sorted(tmp_path.glob("**/attempts/001/roles/*/logs/node-*.log"))]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    return "\n".join(logs)


@pytest.mark.prove  # a server and its client: the test below
@pytest.mark.torch
def test_a_training_learns_from_what_its_server_samples(tmp_path: Path) -> None:
    log = completed(tmp_path, "grpo-server/job.yaml", f"environment.python={sys.executable}")
    rewards = [float(line.split()[-1]) for line in log.splitlines() if "step " in line and "reward" in line]
    assert len(rewards) >= 20
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.8


@pytest.mark.slow
def test_a_stage_of_a_pipeline_is_a_server_and_its_client(tmp_path: Path) -> None:
    assert "largest error 0.0" in completed(tmp_path, "evaluate/pipeline.yaml")


@pytest.mark.prove  # a Ray cluster on the nodes of a job of Slurm is in tests/slurm/test_roles_ray.py
@pytest.mark.torch("ray")
def test_a_program_uses_all_nodes_of_its_ray_cluster(tmp_path: Path) -> None:
    log = completed(tmp_path, "ray-train/job.yaml", f"environment.python={sys.executable}")
    assert "on 3 nodes" in log
