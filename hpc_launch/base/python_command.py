"""Start Python without its habit of importing from the current folder, where anybody may have put a `json.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | quiet,
            cwd=folder,
            timeout=LIBRARY_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return None, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return None, f"timed out after {LIBRARY_TIMEOUT_S} s"
    return done, ""
