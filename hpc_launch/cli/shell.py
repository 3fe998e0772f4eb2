"""`shell` and `stacks`: look into the processes of a run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from hpc_launch.api.run_calls import find
from hpc_launch.base.errors import Unreachable
from hpc_launch.cli.shared_options import complete_run, echo_json, json_option, set_option, site_option
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.runs.run_index import user_index
from hpc_launch.schedulers.slurm.run_command import submission_environment
from hpc_launch.service.live_job import allocation, live_job, stacks
from hpc_launch.view.format_values import clean, hosts
from hpc_launch.view.run_details import choose_node

MOST_GROUPS, MOST_FRAMES = 30, 12
"""What `stacks` prints as text: so many groups, and of each so many calls, the innermost."""

role_option = click.option("--role", metavar="NAME", help="This role of the job; server.1 is a replica.")


@click.command("shell")
@click.argument(
    "run",
    metavar="RUN|JOB.yaml",
    shell_complete=lambda *given: [CompletionItem(given[2], type="file"), *complete_run(*given)],
)
@click.option("--node", metavar="N", help="The first rank of this node, by index (from 0) or name.")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="This rank.")
@role_option
@site_option
@set_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def shell_command(
    run: str, command: tuple[str, ...], site: str | None, sets: tuple[str, ...], rank: int | None, **place: str | None
) -> None:
    """Open a shell where a run runs, as one of its ranks: in the same environment, image and folder.

    By default as the first rank of the first node. With a COMMAND, run that instead, and exit with its code. The
    training goes on, and shares its node with what is started here.

    With a job file, ask Slurm for the resources of the job (salloc), and open a shell on the first node, in the job's
    environment. There, `hpc-launch run JOB.yaml` starts the training.

    \b
    hpc-launch shell @last
    hpc-launch shell tiny-gpt --rank 3 -- nvidia-smi
    hpc-launch shell job.yaml --set time=00:30:00
    """
    pty, of_job = sys.stdin.isatty() and sys.stdout.isatty(), run.endswith((".yaml", ".yml"))
    if rank is not None or any(place.values()) if of_job else site or sets:
        wrong = "--node, --rank and --role need a run" if of_job else "--site and --set need a job file"
        raise click.UsageError(wrong)
    if of_job:
        words, environment = allocation(Path(run), command, TERMINAL, site=site, sets=sets, pty=pty)
    else:
        index, environment = user_index(), submission_environment()
        job = live_job(find(run, listener=TERMINAL).one(), index, TERMINAL, role=place["role"])
        node, rank = job.place(choose_node(place["node"], job.attempt) if place["node"] else None, rank)
        prompt = f"[{job.run.name} rank {rank} \\h] \\w \\$ "
        words = job.command([node], [str(rank), prompt, *command], terminal=pty)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
    try:
        os.execvpe(words[0], words, environment)  # noqa: S606 - it gets the terminal and its signals
    except OSError as error:
        raise Unreachable(f"cannot run {words[0]}: {error.strerror}", "run this on a login node") from None


@click.command("stacks")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@role_option
@json_option
def stacks_command(run: str, role: str | None, as_json: bool) -> None:
    """Show where each rank of a run is now: the Python stack of its main thread, equal ones together.

    Ranks that the others wait for come first, then those that differ from most. A stack comes from py-spy if the job's
    PATH has it, else from Python itself; the training goes on.

    \b
    hpc-launch stacks @last
    hpc-launch stacks tiny-gpt --json
    """
    index = user_index()
    job = live_job(find(run, listener=TERMINAL).one(), index, TERMINAL, role=role)
    groups, silent = stacks(job)
    if as_json:
        echo_json({"run": job.run.name, "attempt": job.attempt.number, "groups": groups, "not_seen": silent})
        return
    for group in groups[:MOST_GROUPS]:
        ranks = hosts([f"r{rank}" for rank in group["ranks"]]).removeprefix("r").strip("[]")
        click.echo(
            f"rank {ranks} on {hosts(group['hosts'])}{': the others wait for it' if group['others_wait'] else ''}"
        )
        frames = [f"{one['file']}:{one['line']} in {one['call']}" for one in group["frames"][:MOST_FRAMES]]
        for line in frames or [f"no Python stack: state {group['state']}, in {group['waits_in']}"]:
            click.echo(f"  {clean(line)}")
    further = len(groups) - MOST_GROUPS
    for line in [*silent, *([f"{further} further groups: --json shows all"] if further > 0 else [])]:
        print_note(line)
