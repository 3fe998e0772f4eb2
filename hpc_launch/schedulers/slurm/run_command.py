"""Run Slurm's query commands with a timeout; a failed command raises `Unreachable`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.slurm.command_environment import query_environment

TIMEOUT_S = 30.0
"""Slurm's commands give up on a silent controller after about 20 s (two tries of MessageTimeout, 10 s each)."""

NOT_HERE = "run hpc-launch on a login node of the cluster, with its slurm module loaded"


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line of output, which states the error."""
        lines = [line.strip() for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}, no output"


def run(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> CommandResult:
    """Run a command. Raises Unreachable if it is not found or times out."""
    try:
        done = subprocess.run(
            list(command),
            env=query_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} timed out after {timeout_s:g} s") from None
    except OSError as error:
        raise Unreachable(f"cannot run {command[0]}: {error.strerror}", NOT_HERE) from None
    return CommandResult(done.returncode, done.stdout, done.stderr)


def ask(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """The output of a command. Raises Unreachable with its last line of output if it fails."""
    answer = run(command, timeout_s)
    if answer.code != 0:
        raise Unreachable(f"{command[0]}: {answer.last_line}")
    return answer.output
