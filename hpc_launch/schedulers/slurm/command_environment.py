"""The environment in which Slurm's commands run: free of what an enclosing job or a user's profile leaks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

LEAKS = re.compile(r"(SBATCH|SLURM|SLURMD|SRUN|SALLOC|PMI|PMIX)_|PMI\d*_")
"""SBATCH_* beats the script's own directives (sbatch(1), INPUT ENVIRONMENT VARIABLES); the others describe an
enclosing job and are input variables of the next sbatch or srun: SLURM_MEM_PER_NODE beside a --mem-per-cpu is
fatal, SLURM_NTASKS changes the shape of the step."""

CLIENT = frozenset("SLURM_CONF SLURM_CONF_SERVER SLURM_CLUSTERS SLURM_JWT SLURM_SACK_JWKS SLURM_SACK_KEY".split())
"""Settings of the client itself: where the controller is, and how to prove who asks."""

QUERY_DEFAULTS = re.compile(r"(SQUEUE|SACCT|SCANCEL|SCONTROL|SINFO)_|SHOW_DETAILS$")
"""What a profile sets to filter or format answers for people: SQUEUE_PARTITION would hide jobs from us."""


def submission_environment(
    more: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for a submission: those of this process without leaks, and `more` on top.

    LC_ALL stays as it is: with sbatch's `--export=ALL` everything here reaches the job.
    """
    source = os.environ if base is None else base
    kept = {key: value for key, value in source.items() if key in CLIENT or not LEAKS.match(key)}
    kept.pop("HPC_LAUNCH_IN_ALLOCATION", None)
    return kept | dict(more or {})


def query_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for squeue, sacct, scontrol and scancel: plain English, times in seconds since the epoch.

    SLURM_TIME_FORMAT is a strftime format; `%s` works in squeue, sacct and scontrol (22.05).
    """
    kept = {key: value for key, value in submission_environment(None, base).items() if not QUERY_DEFAULTS.match(key)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
