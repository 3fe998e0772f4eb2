"""Follow sweeps to their end: a line on stderr whenever the number of points in some state has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click

from hpc_launch.cli.error_handler import INTERRUPTED
from hpc_launch.job.shell_text import visible
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import user_index

POLL_S = 3.0
"""Pause between two looks. The scheduler is asked less often, for all runs at once."""


def follow_sweeps(runs: Sequence[RunFolder]) -> int:
    """Follow runs of which some are sweeps. Returns the exit code as `follow` does."""
    from hpc_launch.cli.follow import poll_runs
    from hpc_launch.view.state_text import detach_message

    index, shown = user_index(os.environ), dict[str, str]()
    try:
        while True:
            statuses = poll_runs(runs, index)
            for status in statuses:
                line = f"{status.run}: {status.state}" + (f": {status.reason}" if status.reason else "")
                if shown.get(status.run) != line:
                    shown[status.run] = line
                    click.echo(visible(line), err=True)
            if all((status.final and not status.undecided) or status.state == "STUCK" for status in statuses):
                return 0 if all(status.state == "COMPLETED" for status in statuses) else 1
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        click.echo(detach_message([run.name for run in runs]), err=True)
        return INTERRUPTED
