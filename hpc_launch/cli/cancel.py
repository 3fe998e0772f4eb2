"""`cancel`: end runs, at whatever moment of their life."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.run_index import Index


@click.command("cancel")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
def command(runs: tuple[str, ...]) -> int:
    """End runs: a job that waits or runs is cancelled, one that is just being submitted will never train.

    A run that is over already is left as it is, and that is no error.

    \b
    hpc-launch cancel @last
    hpc-launch cancel tiny-gpt-250312 12345
    """
    from hpc_launch.base.errors import UserError
    from hpc_launch.cli.error_handler import show
    from hpc_launch.run.find_run import find_run
    from hpc_launch.run.run_index import user_index

    index = user_index(os.environ)
    # All names first: one that is misspelt must not leave the work half done.
    found = {folder.path: folder for folder in (find_run(run, index) for run in runs)}
    code = 0
    for folder in found.values():
        try:
            click.echo(_cancel(folder, index))
        except UserError as error:
            show(error)
            code = error.exit_code
    return code


def _cancel(run: RunFolder, index: Index) -> str:
    """End one run, and say what that came to. Raises Unreachable, and UsageError where its folder is none."""
    from hpc_launch.cli.follow import look
    from hpc_launch.retry.drivers import Schedulers
    from hpc_launch.run.records.final_state import MAY_COME_BACK
    from hpc_launch.run.submitting.cancel_run import cancel_run
    from hpc_launch.view.format_values import clean

    name = clean(run.name)
    (before,) = look([run], index, drive=False)
    # After a failure that no driver has looked at yet another attempt may follow, and after a lost node a requeue.
    open_end = before.state == "FAILED" and before.undecided
    if before.final and not open_end and not any(one.state in MAY_COME_BACK for one in before.attempts[-1:]):
        return f"{name} is over already: {before.state}"
    told = cancel_run(run, Schedulers().of(run), undecided=open_end)
    if told:
        return f"{name}: cancelled, job {', '.join(map(clean, told))} was told to end"
    (after,) = look([run], index, drive=False)
    if after.state == "SUBMITTING":
        return f"{name} is not submitted yet, and nothing of it can be given up now; try again"
    return f"{name}: {after.state}, no job had to be told"
