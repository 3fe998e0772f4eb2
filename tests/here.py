"""hpc-launch as a person calls it on this machine, with runs, state and settings in a folder of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HOMES = {"HPC_LAUNCH_HOME": "runs", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A verb to its end, in `folder`."""
    env = {**os.environ, **{name: str(folder / home) for name, home in HOMES.items()}}
    command = [sys.executable, "-m", "hpc_launch.cli.main", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=180, check=False)
