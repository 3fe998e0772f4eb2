"""The programs of the agent, as a run folder has them."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from hpc_launch.base.installed import ARCHIVE, agent_archive


@cache
def archive() -> Path:
    """`agent.pyz`, in a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hpc-launch-agent-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # for the users of a test cluster
    (folder / ARCHIVE).write_bytes(agent_archive())
    return folder / ARCHIVE


def program(name: str, *options: str) -> list[str]:
    """The command that starts one, with further options of Python."""
    return [sys.executable, "-I", *options, str(archive()), name]


def altered(name: str, **values: float) -> list[str]:
    """The same with other values of constants of its module."""
    code = f"import sys; sys.path.insert(0, {str(archive())!r}); from hpc_launch.agent import {name} as program; "
    code += "".join(f"program.{key} = {value!r}; " for key, value in values.items())
    return [sys.executable, "-I", "-c", f"{code}sys.exit(program.main(sys.argv[1:]))"]
