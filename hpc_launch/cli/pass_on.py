"""Pass a command on to the host that has the files of a run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_launch.agent.connection import SSH_FAILED
from hpc_launch.base.errors import Unreachable
from hpc_launch.base.python_command import module_command
from hpc_launch.schedulers.ssh.ssh_command import SSH

if TYPE_CHECKING:
    from hpc_launch.runs.find_run import RunElsewhere


def pass_on(found: RunElsewhere) -> int:
    """Run this command on the run's first host, with the folder of the run there. Returns its exit code."""
    return run_there(found.host, [str(found.folder) if word == found.text else word for word in sys.argv[1:]])


def run_there(host: str, arguments: Sequence[str]) -> int:
    """Run hpc-launch on a host. Returns its exit code, or that of Unreachable."""
    command = shlex.join(["exec", *module_command("hpc_launch"), *arguments])
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    ssh = [word for word in SSH if word != "-T" or not terminal]
    code = subprocess.run([*ssh, *terminal, "--", host, shlex.join(["bash", "-c", command])], check=False).returncode
    return Unreachable.exit_code if code == SSH_FAILED else code
