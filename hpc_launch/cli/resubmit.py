"""`resubmit`: submit the next attempt of a run that has ended."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import json_option, set_option
from hpc_launch.cli.terminal import TERMINAL


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
    from hpc_launch.cli.follow import after_submission
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.resubmit import resubmit

    index = user_index(os.environ)
    submitted = resubmit(
        find_run(run, index, stages=True), index, TERMINAL, sets=sets, exclude=excluded, wait=wait, confirmed=yes
    )
    return after_submission(submitted, wait=wait, as_json=as_json)
