"""`why`, `report` and `logs`: what a run did, and why it failed."""

from __future__ import annotations

import os
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.api.run_calls import diagnose, find
from hpc_launch.base.errors import UsageError
from hpc_launch.cli.shared_options import complete_run, echo_answer, json_option, json_text, output_option
from hpc_launch.cli.terminal import INTERRUPTED, TERMINAL, print_note, write_text
from hpc_launch.runs.run_index import user_index
from hpc_launch.service.logs import attempt_with_logs
from hpc_launch.view.run_details import choose_node, log_text
from hpc_launch.view.state_text import detach_message, one_line
from hpc_launch.view.terminal import tolerant, wants_colour

if TYPE_CHECKING:
    from hpc_launch.view.explanation import Explanation

FAILED = 1

attempt_option = click.option(
    "--attempt", "number", type=click.IntRange(min=1), metavar="K", help="Attempt number (default: the newest)."
)


@click.command("why")
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    help="Diagnose log files of any job instead of a run; - is stdin. Repeatable.",
)
@attempt_option
@click.argument("more", nargs=-1, metavar="[FILE...]", type=click.UNPROCESSED)
@json_option
def why_command(
    run: str | None, logs: tuple[str, ...], number: int | None, more: tuple[str, ...], as_json: bool
) -> int:
    """Explain why a run failed: the failure class, the rank or node that failed first, the evidence, and what to do.

    For a run that is active or succeeded, report what may slow it down: a slow node, TCP sockets instead of the fast
    network, unused NVLink, throttled clocks, slow data loading, small gradient buckets. Also shows where the time of
    the run went, and which interval between checkpoints would lose the least.

    With --log, diagnose log files of any job; several files are treated as parts of one job. Exits with 0 for a success
    or an active run, 1 for a failure or an unexplained end.

    \b
    hpc-launch why @last
    hpc-launch why tiny-gpt --attempt 2 --json
    hpc-launch why --log slurm-4711.out
    hpc-launch why --log node0.err node1.err
    """
    if logs:
        found = diagnose(*logs, *([run] if run else []), *more, stdin=sys.stdin.buffer, listener=TERMINAL)
    else:
        found = _of_run(run, more, number)
    echo_answer(found.as_json(), found.lines(colour=wants_colour(sys.stdout)), as_json=as_json)
    return 0 if found.good else FAILED


def _of_run(name: str | None, more: tuple[str, ...], number: int | None) -> Explanation:
    if name is None or more:
        raise UsageError("name one run, or log files after --log", "hpc-launch why @last, hpc-launch why --log FILE")
    try:
        run = find(name, listener=TERMINAL)
    except UsageError as error:
        if not os.path.isfile(name):
            raise
        hint = f"to diagnose a log file, run `hpc-launch why --log {shlex.quote(name)}`"
        raise UsageError(str(error), hint) from None
    return run.why(number)


@click.command("report")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.argument("other", required=False, metavar="[OTHER]", shell_complete=complete_run)
@output_option
@json_option
def report_command(run: str, other: str | None, output: Path | None, as_json: bool) -> None:
    """Write a run as one HTML page that needs no other file and no network. With OTHER, compare two runs.

    The page shows where the time went, loss, learning rate and speed over all attempts, use and memory of each rank,
    slow nodes, verdicts with their evidence, what ran and what it cost. The page of two runs shows the settings that
    differ, and loss, speed, cost and goodput side by side.

    \b
    hpc-launch report @last -o run.html
    hpc-launch report tiny-a tiny-b -o both.html
    """
    found = [find(one, listener=TERMINAL) for one in (run, other) if one is not None]
    if as_json:
        values = [one.report_values() for one in found]
        write_text(output, json_text(values if other is not None else values[0]))
        return
    from hpc_launch.report.run_page import compare_page, gathered, run_page

    reports = [gathered(one.one(), user_index(), TERMINAL) for one in found]
    write_text(output, compare_page(reports) if other is not None else run_page(reports[0]))


@click.command("logs")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the output until the run ends.")
@click.option("--node", metavar="N", help="Only this node, by index (from 0) or name.")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Only lines of this rank.")
@click.option("--role", metavar="NAME", help="Only this role of the job; server.1 is a replica.")
@attempt_option
@click.option("--first", type=click.IntRange(min=1), hidden=True, help="With --follow: begin with this attempt.")
@json_option
def logs_command(
    run: str,
    following: bool,
    node: str | None,
    rank: int | None,
    role: str | None,
    number: int | None,
    first: int | None,
    as_json: bool,
) -> int:
    """Print the output of a run: the batch script's, then each node's.

    Lines are prefixed with their origin unless --node or --rank is given. Escape sequences are removed.

    \b
    hpc-launch logs @last
    hpc-launch logs tiny-gpt -f --rank 0
    hpc-launch logs 12345 --node n3 --attempt 1
    """
    found = find(run, listener=TERMINAL)
    attempt = attempt_with_logs(found.one(), number, role)
    chosen = choose_node(node, attempt) if node is not None else None
    out, count, said = tolerant(sys.stdout), 0, ""

    def pause(seconds: float) -> None:
        nonlocal said
        out.flush()
        if found.last is not None and not (count or found.last.state == said or found.last.final):
            said = found.last.state
            print_note(f"no output yet: {one_line(found.last)}")
        time.sleep(seconds)

    try:
        place = partial(found.logs, node=node, rank=rank, role=role)
        lines = place(attempt=number, first=first, follow=following, pause=pause)
        for count, line in enumerate(lines, 1):  # noqa: B007 - `pause` looks at it
            one_node, one_rank = chosen is not None, rank is not None
            out.write(log_text(line, one_node=one_node, one_rank=one_rank, as_json=as_json))
    except KeyboardInterrupt:
        if not following:
            raise
        click.echo(detach_message([found.name]), err=True)
        return INTERRUPTED
    out.flush()
    if following and found.last is not None:
        click.echo(one_line(found.last), err=True)
    if not following and not count:
        print_note(f"attempt {attempt.number} of {found.name} has no matching output")
    return 0
