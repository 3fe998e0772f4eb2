"""The installed package: its files, commands that start its modules, and what a run folder gets of agent/."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from hpc_launch.agent import WITHOUT_CURRENT_FOLDER

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(folder: str) -> Path:
    """A shipped folder by name, such as `slurm_templates`. Raises FileNotFoundError if the installation is broken."""
    for candidate in (_PACKAGE / "_data" / folder, _PACKAGE.parent / folder):
        if os.path.isdir(candidate):
            return candidate
    message = f"the installation is incomplete: folder {folder} not found; reinstall hpc-launch"
    raise FileNotFoundError(message)


@cache
def read_shipped(path: Path, kind: Any) -> Any:
    """The content of a file as this type. Raises FileNotFoundError for a broken install.

    With libyaml where available: ten times as fast. Both loaders create plain values only.
    """
    import msgspec
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return msgspec.convert(yaml.load(path.read_text("utf-8"), Loader=loader), kind)  # noqa: S506


_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def module_command(module: str) -> list[str]:
    """The command `python -m MODULE` with this interpreter, without the current folder in `sys.path`."""
    return [sys.executable, "-c", f"{WITHOUT_CURRENT_FOLDER}{_RUN_MODULE}", module]


AGENT = Path(__file__).parents[1] / "agent"
ARCHIVE = "agent.pyz"
HOOKS = AGENT / "hpc_launch_hooks.py"
PHASES = AGENT / "sitecustomize.py"
"""On the PYTHONPATH of a training, and therefore files of their own."""
