"""`submit`: submit a job file as a new run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.cli.shared_options import echo_json, job_argument, json_option, set_option, site_option

if TYPE_CHECKING:
    from hpc_launch.prepare.prepare import PreparedJob


@click.command("submit")
@job_argument
@site_option
@set_option
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for a scheduler that does not answer, and follow the run to its end; exit with 0 only if it COMPLETED. "
    "On hosts without Slurm, the run ends if this command is killed.",
)
@click.option("--dry-run", is_flag=True, help="Write and print the script without submitting it.")
@click.option("--test-only", is_flag=True, help="Ask the scheduler when the job would start, without submitting it.")
@click.option("--yes", is_flag=True, help="Submit without asking, whatever it costs (`confirm_gpu_hours`).")
@json_option
def command(
    job: Path,
    site: str | None,
    sets: tuple[str, ...],
    wait: bool,
    dry_run: bool,
    test_only: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Submit a training job: check it, write its script, pass it to the scheduler and print the run's name.

    A job file with `sweep:` becomes a run for each point, submitted as job arrays. One with `jobs:` is a pipeline: each
    stage is submitted when those that it waits for are over.

    \b
    hpc-launch submit job.yaml --site mycluster
    hpc-launch submit job.yaml --set nodes=4 --set args.lr=0.001 --wait
    """
    from hpc_launch.cli.warn import print_site_and_warnings, warn_about_node_health
    from hpc_launch.job.job_file import has_jobs, has_sweep, refuse_made_up
    from hpc_launch.prepare.prepare import prepare_job

    if has_jobs(job):
        from hpc_launch.cli.submit_pipeline import submit_pipeline

        if test_only:
            raise click.UsageError(f"--test-only needs one job: {job}/STAGE")
        return submit_pipeline(job, site=site, sets=sets, wait=wait, dry_run=dry_run, yes=yes, as_json=as_json)
    refuse_made_up(job, "submit")
    if has_sweep(job, sets):
        from hpc_launch.cli.submit_sweep import submit_sweep

        show = {"dry_run": dry_run, "test_only": test_only}
        return submit_sweep(job, site=site, sets=sets, wait=wait, show=show, yes=yes, as_json=as_json)
    prepared_job = prepare_job(job, site=site, sets=sets)
    avoided: tuple[str, ...] = ()
    while prepared_job.plan.hosts and (more := _unhealthy_hosts(prepared_job, avoided)):
        avoided += more
        prepared_job = prepare_job(job, site=site, sets=sets, avoid=avoided)
    print_site_and_warnings(prepared_job.loaded.detected, prepared_job.plan.site, prepared_job.warnings)
    if dry_run:
        return _dry_run(prepared_job, as_json)
    if test_only:
        return test_start(prepared_job, as_json=as_json)
    if not yes:
        from hpc_launch.cli.confirm_cost import confirm_cost

        confirm_cost(prepared_job)
    from hpc_launch.cli.shared_checkpoints import warn_about_shared_checkpoints
    from hpc_launch.prepare.attempts import first_attempt
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.runs.submitting.submit_attempt import submit_new
    from hpc_launch.schedulers.registry import scheduler_for
    from hpc_launch.view.terminal import waiting_notice

    warn_about_node_health(prepared_job.plan)
    index = user_index(os.environ)
    warn_about_shared_checkpoints(prepared_job.plan, index)
    prepared = first_attempt(prepared_job, sets, exclude=avoided)
    scheduler = scheduler_for(prepared.scheduler)
    with waiting_notice("submitting the job") as doing:
        submitted = submit_new(prepared, scheduler, index=index, wait=doing if wait else None)
    from hpc_launch.cli.after_submit import after_submission

    return after_submission(submitted, wait=wait, as_json=as_json)


def _unhealthy_hosts(prepared_job: PreparedJob, avoided: tuple[str, ...]) -> tuple[str, ...]:
    """Further hosts that node health excludes; says so."""
    from hpc_launch.prepare.attempts import unhealthy_hosts

    found = unhealthy_hosts(prepared_job.plan, avoided)
    if found:
        click.echo(f"not using {', '.join(found)}: `hpc-launch nodes list` shows why", err=True)
    return found


def write_dry_run(prepared_job: PreparedJob) -> Path:
    """Write the script, byte-identical to a submission's, to the runs folder, where it can be started by hand."""
    from hpc_launch.base.errors import Refused
    from hpc_launch.base.files import write_atomic
    from hpc_launch.base.findings import Finding
    from hpc_launch.base.user_dirs import make_own_folder, user

    # A group may share the folder of runs. Another user may have taken the name.
    folder = Path(prepared_job.plan.runs_folder) / f"dry-run-{user()}"
    if os.path.lexists(folder) and folder.lstat().st_uid != os.getuid():
        folder = folder.with_name(f"{folder.name}-{os.urandom(4).hex()}")
    path = folder / f"{prepared_job.plan.name}.sh"
    try:
        make_own_folder(folder)
        write_atomic(path, prepared_job.script, mode=0o755)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise Refused([Finding(FindingCode.CANNOT_WRITE, message, hint="set run_dir: to a writable folder")]) from error
    return path


def _dry_run(prepared_job: PreparedJob, as_json: bool) -> int:
    path = write_dry_run(prepared_job)
    if as_json:
        echo_json({"run": None, "job_id": None, "script": str(path), "folder": None})
    else:
        click.echo(prepared_job.script, nl=False)
        click.echo(f"dry run: not submitted; script written to {path}", err=True)
    return 0


def test_start(prepared_job: PreparedJob, *, as_json: bool) -> int:
    """Print when the scheduler would start the job."""
    from hpc_launch.prepare.start_estimate import start_estimate
    from hpc_launch.schedulers.registry import scheduler_for
    from hpc_launch.view.terminal import waiting_notice

    with waiting_notice("waiting for the scheduler's estimate"):
        answer = start_estimate(prepared_job, scheduler_for(prepared_job.plan.scheduler))
    if as_json:
        echo_json({"estimate": answer})
    else:
        click.echo(answer)
    return 0
