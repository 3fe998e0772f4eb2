"""Names of the files in a job's folder that a scheduler reads or writes, and what a script requests. Standard library
only."""

from collections.abc import Iterator
from itertools import takewhile

SCRIPT = "script.sh"
BATCH_LOG = "batch.log"
LOCAL_STATE = "local.json"
FIRST = "001"
"""The folder of a run's first attempt."""
JOB_ID = "HPC_LAUNCH_JOB_ID"
JOB_MARKER = "HPC_LAUNCH_LOCAL_JOB"
"""Variables that every process of a local job inherits: the job id for its script, and `ID:FOLDER` as its marker,
because ids are unique only within a state folder."""
ELSEWHERE = "elsewhere.json"
"""In a run folder that another host has: `host` is its name for ssh."""


def hosts_of(script: str) -> tuple[tuple[str, ...], bool]:
    """The names of the `#HOST` lines, before the first command: where a job without Slurm runs. And whether other runs
    may use these hosts."""
    lines = [line for line in _header(script) if line.startswith("#HOST ")]
    return tuple(line.split()[1] for line in lines), any(line.endswith(" shared") for line in lines)


def spares_of(script: str) -> tuple[str, ...]:
    """The names of the `#SPARE` lines: hosts that the job holds besides."""
    return tuple(line.split()[1] for line in _header(script) if line.startswith("#SPARE "))


def directives(script: str) -> list[str]:
    """The `#SBATCH` lines that sbatch reads: those before the first command. Without the origins after ` # `."""
    return [line.partition(" # ")[0].rstrip() for line in _header(script) if line.startswith("#SBATCH ")]


def _header(script: str) -> Iterator[str]:
    """The lines before the first command."""
    return takewhile(lambda line: not line.strip() or line.startswith("#"), script.splitlines())
