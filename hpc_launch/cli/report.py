"""`report`: write a run as one HTML page."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.terminal import TERMINAL


@click.command("report")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to FILE instead of stdout.", metavar="FILE"
)
def command(run: str, output: Path | None) -> None:
    """Write a run as one HTML page that needs no other file and no network.

    The page shows the attempts on a time axis, where the time went, loss and throughput over all attempts, nodes and
    verdicts with their evidence, and the script with the origin of each value.

    \b
    hpc-launch report @last -o run.html
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.files import write_output
    from hpc_launch.performance.measured_pace import interval_of
    from hpc_launch.performance.run_times import run_times
    from hpc_launch.report.run_page import RunReport, run_page
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.poll import poll_runs
    from hpc_launch.view.time_text import interval_text

    index = user_index(os.environ)
    (status,) = poll_runs([find_run(run, index)], index, TERMINAL)
    now = time.time()
    times = run_times(status, now)
    interval = interval_of(status, times, index)
    notes = (f"Checkpoints: {interval_text(interval)}.",) if interval is not None else ()
    page = run_page(RunReport(status, times, now, notes))
    if output is None:
        click.echo(page, nl=False)
        return
    try:
        write_output(output, page)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", "name another file with -o") from error
