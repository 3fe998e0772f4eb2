"""Runs Slurm's query commands, each in bounded time; a command without an answer is `Unreachable`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.slurm.command_environment import query_environment

TIMEOUT_S = 30.0
"""Slurm's own commands give up on a silent controller after about 20 s (two tries of MessageTimeout, 10 s each)."""

NOT_HERE = "Slurm's commands are on a cluster's login nodes. Is this one, and is its slurm module loaded?"


@dataclass(frozen=True)
class CommandResult:
    """What a command said and how it ended."""

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The command's own last word on what went wrong."""
        lines = [line.strip() for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with code {self.code} and said nothing"


def run(words: Sequence[str], timeout_s: float = TIMEOUT_S) -> CommandResult:
    """Run a command to its end. Raises Unreachable when there is no such command, or it takes too long."""
    try:
        done = subprocess.run(
            list(words),
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
        raise Unreachable(f"{words[0]} gave no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise Unreachable(f"cannot run {words[0]}: {error.strerror}", NOT_HERE) from None
    return CommandResult(done.returncode, done.stdout, done.stderr)


def ask(words: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """The output of a command that succeeded. Raises Unreachable with the command's own last line otherwise."""
    answer = run(words, timeout_s)
    if answer.code != 0:
        raise Unreachable(f"{words[0]}: {answer.last_line}")
    return answer.output
