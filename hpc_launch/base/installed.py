"""The installed package: its files, commands that start its modules, and what a run folder gets of agent/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.run_program import run_program

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(folder: str) -> Path:
    """A shipped folder by name, such as `slurm_templates`. Raises FileNotFoundError if the installation is broken."""
    for candidate in (_PACKAGE / "_data" / folder, _PACKAGE.parent / folder):
        if os.path.isdir(candidate):
            return candidate
    message = f"the installation is incomplete: folder {folder} not found; reinstall hpc-launch"
    raise FileNotFoundError(message)


WITHOUT_CURRENT_FOLDER = "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
"""First words of a program for `python -c`. Python 3.11 has `-P` for this; `-I` would also ignore PYTHONPATH, by which
modules of a centre provide packages."""
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def module_command(module: str) -> list[str]:
    """The command `python -m MODULE` with this interpreter, without the current folder in `sys.path`."""
    return [sys.executable, "-c", f"{WITHOUT_CURRENT_FOLDER}{_RUN_MODULE}", module]


LIBRARY_TIMEOUT_S = 120
"""An environment on a parallel file system may take a minute to import torch for the first time."""


def ask_library(
    script: Path, words: Sequence[str], *, python: str | None = None, text: str = "", folder: str | None = None
) -> tuple[subprocess.CompletedProcess[str] | None, str]:
    """What a script prints that imports a library, in a Python of its own: that takes seconds, prints, and needs torch.

    With a reason instead if it cannot be run. No GPU is looked for, and nothing is downloaded.
    """
    quiet = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    quiet |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [python or sys.executable, "-W", "ignore", str(script), *words]
    try:
        environment = os.environ | quiet
        done = run_program(command, LIBRARY_TIMEOUT_S, environment=environment, text=text, folder=folder)
    except OSError as error:
        return None, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return None, f"timed out after {LIBRARY_TIMEOUT_S} s"
    return done, ""


AGENT = Path(__file__).parents[1] / "agent"
ARCHIVE = "agent.pyz"
HOOKS = AGENT / "hpc_launch_hooks.py"
PHASES = AGENT / "sitecustomize.py"
"""On the PYTHONPATH of a training, and therefore files of their own."""
