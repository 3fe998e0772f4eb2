"""`resubmit`: submit the next attempt of a run that has ended."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import json_option, set_option


@click.command("resubmit")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@set_option
@click.option("--exclude", "excluded", multiple=True, metavar="NODES", help="Nodes to exclude, as n3 or n[3-5].")
@click.option("--wait", is_flag=True, help="Follow the run to its end.")
@json_option
def command(run: str, sets: tuple[str, ...], excluded: tuple[str, ...], wait: bool, as_json: bool) -> int:
    """Submit the next attempt of a run, from the job file and site profile stored in its folder.

    \b
    hpc-launch resubmit @last --exclude n3
    hpc-launch resubmit tiny-gpt --set time=04:00:00 --wait
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.cli.after_submit import after_submission
    from hpc_launch.cli.warn import warn
    from hpc_launch.retry.next_attempt import edited_since, next_attempt
    from hpc_launch.run.find_run import find_run
    from hpc_launch.run.run_index import user_index
    from hpc_launch.run.submitting.submit_attempt import submit_next
    from hpc_launch.schedulers.registry import scheduler_for
    from hpc_launch.spec.hostlist import expand
    from hpc_launch.spec.shell_text import visible
    from hpc_launch.view.terminal import waiting_notice

    for nodes in excluded:
        try:
            expand(nodes)
        except ValueError as error:
            raise UsageError(f"--exclude {nodes}: {error}", "write nodes as n3 or n[3-5]") from error
    index = user_index(os.environ)
    folder = find_run(run, index)
    prepared_job, prepared = next_attempt(folder, sets=sets, exclude=excluded)
    warn(prepared_job.warnings)
    edited = edited_since(folder)
    if edited is not None:
        click.echo(f"{visible(edited)} has changed since; this run uses the job file it was submitted with", err=True)
    with waiting_notice("waiting for the scheduler to accept the job"):
        submitted = submit_next(folder, prepared, scheduler_for(prepared.scheduler), index=index)
    return after_submission(submitted, wait=wait, as_json=as_json)
