"""`run`: run a job inside an existing Slurm allocation."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpc_launch.cli.shared_options import job_argument, json_option, set_option, site_option


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
    from hpc_launch.base.errors import UsageError
    from hpc_launch.cli.after_submit import after_submission
    from hpc_launch.cli.shared_checkpoints import warn_about_shared_checkpoints
    from hpc_launch.cli.warn import print_site_and_warnings
    from hpc_launch.job.job_file import refuse_made_up, refuse_sweep
    from hpc_launch.prepare.attempts import first_attempt
    from hpc_launch.prepare.prepare import prepare_job
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.runs.submitting.submit_attempt import submit_new
    from hpc_launch.schedulers.registry import scheduler_for

    refuse_sweep(job, sets, "run")
    refuse_made_up(job, "run")
    prepared_job = prepare_job(job, site=site, sets=sets)
    print_site_and_warnings(prepared_job.loaded.detected, prepared_job.plan.site, prepared_job.warnings)
    kind = "local"
    if prepared_job.plan.scheduler == "slurm":
        if "SLURM_JOB_ID" not in os.environ:
            hint = "create one with salloc, or queue the job with `hpc-launch submit`"
            raise UsageError("not inside a Slurm allocation", hint)
        kind = "allocation"
    index = user_index(os.environ)
    warn_about_shared_checkpoints(prepared_job.plan, index)
    prepared = first_attempt(prepared_job, sets, scheduler=kind)
    submitted = submit_new(prepared, scheduler_for(kind), index=index)
    return after_submission(submitted, wait=True, as_json=as_json)
