"""`run`: run a job inside an existing Slurm allocation."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpc_launch.cli.shared_options import job_argument, json_option, set_option, site_option
from hpc_launch.cli.terminal import TERMINAL


@click.command("run")
@job_argument
@site_option
@set_option
@json_option
def command(job: Path, site: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Run a job inside the current Slurm allocation (salloc) and follow it to its end.

    Script, run folder and logs are the same as with `submit`, but nothing is queued. The allocation must have the
    number of nodes that the job requests.

    \b
    salloc --nodes=2 --gpus-per-node=4 --time=1:00:00
    hpc-launch run job.yaml --site mycluster
    """
    from hpc_launch.cli.follow import after_submission
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.submit import submit_here

    submitted = submit_here(job, user_index(os.environ), TERMINAL, site=site, sets=sets)
    return after_submission(submitted, wait=True, as_json=as_json)
