"""Run Slurm's query commands with a timeout, without variables of an enclosing job or the user's shell profile."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from hpc_launch.base.errors import Unreachable
from hpc_launch.base.run_program import run_program

LEAKS = re.compile(r"(SBATCH|SLURM|SLURMD|SRUN|SALLOC|PMI|PMIX)_|PMI\d*_")
"""SBATCH_* overrides the script's directives (sbatch(1), INPUT ENVIRONMENT VARIABLES); the others describe an
enclosing job and are inputs of the next sbatch or srun: SLURM_MEM_PER_NODE conflicts with --mem-per-cpu, and
SLURM_NTASKS changes the number of tasks of a step."""

CLIENT = frozenset("SLURM_CONF SLURM_CONF_SERVER SLURM_CLUSTERS SLURM_JWT SLURM_SACK_JWKS SLURM_SACK_KEY".split())
"""Settings of the client itself: the controller's address and the credentials."""

_OF_A_RUN = "ATTEMPT ATTEMPT_DIR DONE_FILE END_TIME GUARD IN_ALLOCATION PHASE_PIPE RUN_DIR RUN_NAME STOP_FILE"
ENCLOSING_RUN = tuple(f"HPC_LAUNCH_{name}" for name in _OF_A_RUN.split())
"""What a run sets for its training: by its folder and guard it finds the processes that it ends and signals."""

TRACKER_RUNS = ("WANDB_RUN_ID", "WANDB_RUN_GROUP", "NEPTUNE_CUSTOM_RUN_ID")
"""Which run of a tracker a job continues (plan/tracker_environment.py)."""

QUERY_DEFAULTS = re.compile(r"(SQUEUE|SACCT|SCANCEL|SCONTROL|SINFO)_|SHOW_DETAILS$")
"""Variables that filter or format output: SQUEUE_PARTITION, for instance, would hide jobs."""


_cluster: ContextVar[str | None] = ContextVar("cluster", default=None)


@contextmanager
def on_cluster(name: str | None) -> Iterator[None]:
    """Within it, Slurm's commands are for this cluster (`--clusters`); None: as the environment says."""
    token = _cluster.set(name)
    try:
        yield
    finally:
        _cluster.reset(token)


def selected_cluster() -> str | None:
    """The cluster that commands are for, where it need not be this machine's own.

    A job of that cluster asks its own controller, without the database that knows the others' addresses.
    """
    name = _cluster.get() or os.environ.get("SLURM_CLUSTERS") or None
    return None if name == os.environ.get("SLURM_CLUSTER_NAME") else name


def submission_environment(
    more: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a submission: this process's variables without LEAKS, plus `more`.

    LC_ALL is kept: with sbatch's `--export=ALL` all variables reach the job.
    """
    source = os.environ if base is None else base
    kept = {key: value for key, value in source.items() if key in CLIENT or not LEAKS.match(key)}
    enclosing = kept.get("HPC_LAUNCH_RUN_NAME")
    for name in ENCLOSING_RUN:
        kept.pop(name, None)
    if _cluster.get() is not None:  # sbatch gets it as an option; on the nodes the cluster is the default
        kept.pop("SLURM_CLUSTERS", None)
    for name in TRACKER_RUNS:  # the enclosing job's: another run submitted from it has its own
        if enclosing is not None and kept.get(name) == enclosing:
            del kept[name]
    return kept | dict(more or {})


def query_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of squeue, sacct, scontrol and scancel: C locale, times in seconds since the epoch.

    SLURM_TIME_FORMAT is a strftime format; `%s` works in squeue, sacct and scontrol (22.05).
    """
    kept = {key: value for key, value in submission_environment(None, base).items() if not QUERY_DEFAULTS.match(key)}
    if _cluster.get() is not None and (name := selected_cluster()) is not None:
        kept["SLURM_CLUSTERS"] = name
    # Of a job array, squeue and sacct print 64 characters of the waiting tasks, unless told otherwise.
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


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
    cluster = selected_cluster()
    if command[0] == "sacct" and cluster is not None:  # the only one that ignores SLURM_CLUSTERS (22.05 to 26.05)
        command = [command[0], f"--clusters={cluster}", *command[1:]]
    try:
        done = run_program(command, timeout_s, environment=query_environment())
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


def ask_accounting(*words: str, columns: Sequence[str]) -> str:
    """What `sacctmgr show` prints. Raises Unreachable."""
    show = ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show"]
    return ask([*show, *words, f"format={','.join(columns)}"])
