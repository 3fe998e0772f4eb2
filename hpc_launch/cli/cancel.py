"""`cancel`: cancel runs, in any state."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.terminal import TERMINAL


@click.command("cancel")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@json_option
def command(runs: tuple[str, ...], as_json: bool) -> int:
    """Cancel runs. Pending and running jobs are cancelled; a job that is still being submitted exits without training.

    Cancelling a finished run is not an error.

    \b
    hpc-launch cancel @last
    hpc-launch cancel tiny-gpt-250312 12345
    """
    from hpc_launch.base.errors import UserError
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.cancel import cancel
    from hpc_launch.view.format_values import clean

    index = user_index(os.environ)
    # Resolve all names first: a misspelt one must not leave the work half done.
    folders = {folder.path: folder for folder in (find_run(run, index, stages=True) for run in runs)}
    code = 0
    cancelled: list[dict[str, str]] = []
    for folder in folders.values():
        try:
            message = "\n".join(map(clean, cancel(folder, index, TERMINAL).splitlines()))
        except UserError as error:
            TERMINAL.fail(error)
            code = error.exit_code
            continue
        cancelled.append({"run": folder.name, "message": message})
        if not as_json:
            click.echo(message)
    if as_json:
        echo_json(cancelled)
    return code
