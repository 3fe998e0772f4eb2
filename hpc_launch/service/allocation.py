"""A command or a shell in an allocation with the resources of a job, and in its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.errors import UsageError
from hpc_launch.job.job_file import refuse_made_up, refuse_sweep
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.find_secrets import secrets_of
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.schedulers.slurm.run_command import submission_environment
from hpc_launch.script.parts import part
from hpc_launch.script.template_environment import template_environment
from hpc_launch.service.check import announce
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.submit import confirm_cost
from hpc_launch.sites.search_path import is_file_name

OF_BATCH = frozenset("output error open-mode requeue no-requeue signal export array".split())
"""Options of sbatch that salloc lacks, or that are about a script (salloc(1) and sbatch(1), 22.05)."""
BESIDE = "env -u SLURM_GPUS -u SLURM_MEM_PER_CPU srun --overlap --nodes=1 --ntasks=1 --mem=0 --cpu-bind=none --mpi=none"
IN_ALLOCATION = f'export HPC_LAUNCH_ALLOCATION=$(declare -p "${{!SLURM_@}}"); exec {BESIDE} "$@"'
"""What salloc runs: a shell on the first node, which later steps share with it."""


def allocation(
    job: Path, command: Sequence[str], listener: Listener = QUIET, *, site: str | None, sets: Sequence[str], pty: bool
) -> tuple[list[str], dict[str, str]]:
    """What starts a command, or else a shell, in an allocation with a job's resources, and the environment for that.

    `pty`: with a terminal of its own. Raises Refused, and UsageError on hosts without a scheduler.
    """
    refuse_sweep(job, sets, "shell")
    refuse_made_up(job, "shell")
    ready = prepare_job(job, site=site, sets=sets)
    announce(ready, listener, ready.warnings)
    if ready.plan.scheduler == "ssh":
        raise UsageError(f"site {ready.plan.site} has no allocations", "submit the job, then `hpc-launch shell RUN`")
    named = os.path.abspath(site) if site is not None and is_file_name(site) else ready.plan.site
    environment = submission_environment(secrets_of(ready.plan.notify, ready.plan.secrets))
    environment["HPC_LAUNCH_SITE"] = named  # for `hpc-launch run` on the node, which may look like no site
    shell = environment_shell(ready.plan, os.path.dirname(sys.executable))
    words = ["bash", "-lc" if ready.plan.around.login_shell else "-c", shell, "hpc-launch", *command]
    if ready.plan.scheduler == "slurm":
        confirm_cost(ready, listener)
        asked = [one for one in ready.plan.directives if one.option not in OF_BATCH]
        options = [f"--{one.option}" if one.value is None else f"--{one.option}={one.value}" for one in asked]
        inside = ["bash", "-c", IN_ALLOCATION, "bash", *(["--pty"] if pty else []), *words]
        words = ["salloc", *options, *inside]
    return words, environment


def environment_shell(plan: LaunchPlan, programs: str) -> str:
    """A script that becomes a shell, or its arguments, in a plan's environment. `programs`: one more folder in PATH."""
    parts = part("in_place") + part("private_folder")
    template = template_environment().get_template("interactive.sh.j2")
    return template.render(plan=plan, parts=parts, programs=programs, resume_exports=[])
