"""NVIDIA's ft_launcher, where it is installed, trains the example on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.requirements import REPOSITORY


@pytest.mark.slow
@pytest.mark.torch("nvidia_resiliency_ext")
def test_it_trains_the_example(tmp_path: Path) -> None:
    sets = ("launcher=ft_launcher", "nodes=1", "args.steps=3", f"environment.python={sys.executable}")
    job = str(REPOSITORY / "examples" / "tiny-gpt" / "job.yaml")
    command = [sys.executable, "-m", "hpc_launch", "submit", job, "--site=local", "--wait"]
    done = subprocess.run(
        [*command, *(f"--set={one}" for one in sets)],
        env={**os.environ, "HPC_LAUNCH_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [path.read_text(errors="replace") for path in tmp_path.glob("*/attempts/001/logs/node-0.log")]
    assert "ft_launcher" in logs[0]
