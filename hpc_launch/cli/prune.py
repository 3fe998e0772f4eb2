"""`prune`: delete what runs hold that are over."""

from __future__ import annotations

import time

import click
from msgspec import to_builtins

from hpc_launch.base.errors import UsageError
from hpc_launch.cli.shared_options import echo_json, json_option, seconds, yes_option
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.runs.run_index import user_index
from hpc_launch.runs.status.run_status import FINAL_RUN_STATES
from hpc_launch.service.prune import Prunable, prune, survey
from hpc_launch.view.format_values import ago, aligned, clean


@click.command("prune")
@click.option(
    "--older-than",
    "age_s",
    default="30d",
    callback=seconds,
    metavar="TIME",
    help="Only runs that ended so long ago. Default: 30d.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(sorted(FINAL_RUN_STATES), case_sensitive=False),
    help="Only runs in this state. Repeatable.",
)
@click.option(
    "--keep-checkpoints",
    "keep",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Keep the newest N of each run. Default: 1.",
)
@yes_option("Delete without asking.")
@json_option
def command(age_s: int, states: tuple[str, ...], keep: int, yes: bool, as_json: bool) -> int:
    """List what runs hold that are over, and what deleting it frees; then ask, and delete it.

    A run goes as a whole. If its newest complete checkpoint is in its folder, only older checkpoints go. Runs that may
    continue stay, and all that is outside of run folders. Without a terminal, nothing is deleted without --yes. Exits
    with 1 if something could not be deleted; another `prune` completes it.

    \b
    hpc-launch prune
    hpc-launch prune --older-than 90d --state failed --yes
    hpc-launch prune --keep-checkpoints 3
    """
    index = user_index()
    found = survey(index, states=states, older_than_s=age_s, keep=keep, listener=TERMINAL)
    due = {run.folder: run for run in found if run.deletes}
    frees = _size(sum(run.frees for run in due.values()))
    if found and not as_json:
        rows = [("RUN", "STATE", "ENDED", "CODE", "LOGS", "CHECKPOINTS", "FREES", "DELETES", "KEPT")]
        click.echo("\n".join(aligned([*rows, *map(_row, found)])))
        yes = yes or (bool(due) and TERMINAL.answers and TERMINAL.confirm(f"Delete this, and free {frees}?"))
    failed = set()
    for run in due.values() if yes else ():
        try:
            prune(run, index)
        except OSError as error:
            failed.add(run.folder)
            TERMINAL.fail(UsageError(f"{run.run} is not deleted, or not all of it: {error}"))
    if as_json:
        deleted = due.keys() - failed if yes else ()
        echo_json([{**to_builtins(run), "deleted": run.folder in deleted} for run in found])
    elif not due or not yes:
        print_note(f"nothing is deleted; --yes deletes it, and frees {frees}" if due else "nothing to delete")
    return 1 if failed else 0


def _row(run: Prunable) -> tuple[str, ...]:
    ended = "" if run.ended is None else ago(time.time() - run.ended)
    sizes = map(_size, (run.code, run.logs, run.checkpoints, run.frees))
    deletes = "the run" if run.folder in run.deletes else f"{len(run.deletes)} checkpoints" if run.deletes else ""
    return clean(run.run), run.state or "interrupted prune", ended, *sizes, deletes, clean(run.kept or "")


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
