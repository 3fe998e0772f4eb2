"""`resubmit`: submit the next attempt of a run that has ended."""

from __future__ import annotations

import os
import shlex
import sys

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import json_option, set_option
from hpc_launch.job.shell_text import visible
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.view.terminal import is_terminal


@click.command("resubmit")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@set_option
@click.option("--exclude", "excluded", multiple=True, metavar="NODES", help="Nodes to exclude, as n3 or n[3-5].")
@click.option("--wait", is_flag=True, help="Follow the run to its end.")
@click.option("--yes", is_flag=True, help="Do not ask before repeating a run that COMPLETED.")
@json_option
def command(run: str, sets: tuple[str, ...], excluded: tuple[str, ...], wait: bool, yes: bool, as_json: bool) -> int:
    """Submit the next attempt of a run, from the job file and site profile stored in its folder.

    Asks before repeating a run that COMPLETED; without a terminal that requires --yes. Of a sweep, the points, and of a
    pipeline, the stages that failed or were cancelled are submitted again, and what comes after them.

    \b
    hpc-launch resubmit @last --exclude n3
    hpc-launch resubmit tiny-gpt --set time=04:00:00 --wait
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.cli.after_submit import after_submission
    from hpc_launch.cli.shared_checkpoints import warn_about_shared_checkpoints
    from hpc_launch.cli.warn import warn, warn_about_node_health
    from hpc_launch.job.hostlist import expand
    from hpc_launch.retry.next_attempt import edited_since, next_attempt
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.pipelines.pipeline_folder import pipeline_of, reopen, stage_of
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.runs.submitting.submit_attempt import submit_next
    from hpc_launch.schedulers.registry import scheduler_for
    from hpc_launch.view.terminal import waiting_notice

    for nodes in excluded:
        try:
            expand(nodes)
        except ValueError as error:
            raise UsageError(f"--exclude {nodes}: {error}", "write nodes as n3 or n[3-5]") from error
    index = user_index(os.environ)
    folder = find_run(run, index, stages=True)
    if os.path.exists(folder.pipeline_info) or (folder.pipeline is not None and not folder.exists):
        from hpc_launch.cli.submit_pipeline import resubmit_stages

        return resubmit_stages(folder, index, sets=sets, exclude=excluded, wait=wait, as_json=as_json)
    if (part_of := pipeline_of(folder)) is not None:
        reopen(part_of, [stage_of(folder)])
    if os.path.exists(folder.sweep_info):
        from hpc_launch.cli.submit_sweep import resubmit_sweep

        return resubmit_sweep(folder, index, sets=sets, exclude=excluded, wait=wait, as_json=as_json)
    if not yes:
        _confirm_completed(folder, index)
    prepared_job, prepared = next_attempt(folder, sets=sets, exclude=excluded)
    warn(prepared_job.warnings)
    warn_about_node_health(prepared_job.plan)
    warn_about_shared_checkpoints(prepared_job.plan, index, folder)
    edited = edited_since(folder)
    if edited is not None:
        click.echo(f"{visible(edited)} has changed since; this run uses the job file it was submitted with", err=True)
    scheduler = scheduler_for(prepared.scheduler)
    with waiting_notice("submitting the job") as doing:
        submitted = submit_next(folder, prepared, scheduler, index=index, wait=doing if wait else None)
    return after_submission(submitted, wait=wait, as_json=as_json)


def _confirm_completed(folder: RunFolder, index: Index) -> None:
    """Ask before a run that COMPLETED is repeated. Raises UsageError without a terminal and after a no."""
    from hpc_launch.base.errors import UsageError
    from hpc_launch.cli.follow import poll_runs

    (status,) = poll_runs([folder], index, drive=False)
    if status.state != "COMPLETED":
        return
    name = shlex.quote(visible(folder.name))
    done = f"{name} COMPLETED" + (f" at step {status.progress.step}" if status.progress.step is not None else "")
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageError(f"{done}; nothing was submitted", f"hpc-launch resubmit {name} --yes repeats it")
    if not click.confirm(f"{done}. Submit another attempt?", err=True):
        raise UsageError("nothing was submitted")
