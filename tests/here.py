"""hpc-launch as a person calls it on this machine, with runs, state and settings in a folder of the test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.forked import hpc_launch_text

HOMES = {"HPC_LAUNCH_HOME": "runs", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}


def launch(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A verb to its end, in `folder`, with further variables."""
    env = {**os.environ, **{name: str(folder / home) for name, home in HOMES.items()}, **environment}
    return hpc_launch_text(words, cwd=folder, env=env)
