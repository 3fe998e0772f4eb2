"""Print what was submitted, and follow runs: shared by `submit`, `resubmit`, `run` and `watch`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext

import click

from hpc_launch.api.run_calls import wait as wait_for
from hpc_launch.api.run_object import Run
from hpc_launch.cli.shared_options import echo_json, is_set
from hpc_launch.cli.terminal import INTERRUPTED, TERMINAL, print_note, run_there
from hpc_launch.performance.efficiency import run_efficiency
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.service.poll import is_group
from hpc_launch.view.live_view import follower
from hpc_launch.view.run_details import summary
from hpc_launch.view.run_table import show as show_table
from hpc_launch.view.state_text import detach_message
from hpc_launch.view.terminal import wants_colour, write_lines

MOST_JOBS = 5
"""Job ids in the line that a submission prints."""


def after_submission(run: Run, *, wait: bool, as_json: bool) -> int:
    """Print what was submitted; with `wait`, follow it to its end. Returns the exit code."""
    submitted = run.submission
    if submitted is None:
        return 0
    jobs = submitted.job_ids
    if as_json:
        click.echo(json.dumps(submitted.as_json(), indent=2 if submitted.size else None))
    else:
        shown = ", ".join(jobs[:MOST_JOBS]) + (", …" if len(jobs) > MOST_JOBS else "")
        click.echo("  ".join(filter(None, (run.name, submitted.size, f"job {shown or '-'}"))))
        if submitted.left is not None:
            print_note(submitted.left)
        if not wait:
            verb = "status" if submitted.size else "watch"
            print_note(f"follow it with: hpc-launch {verb} {run.name}")
    if not wait:
        return submitted.exit_code
    if len(jobs) == 1 and jobs[0].startswith("ssh-"):
        return _attached(run, jobs[0])
    return follow([run]) or submitted.exit_code


def follow(runs: Sequence[Run], *, as_json: bool = False) -> int:
    """Follow runs to their end on stderr; with `as_json`, print how they ended on stdout.

    Returns the exit code: 0 if all completed, 1 if one did not complete or is stuck, 130 after Ctrl-C.
    """
    shown, groups = dict[str, str](), any(is_group(RunFolder(run.path)) for run in runs)
    display = None if groups or is_set("quiet") else follower(sys.stderr, many=len(runs) > 1)

    def show(statuses: Iterable[RunStatus]) -> None:
        for status in statuses:
            if display is not None:
                display.update(status)
                continue
            line = f"{status.run}: {status.state}" + (f": {status.reason}" if status.reason else "")
            if shown.get(status.run) != line:
                shown[status.run] = line
                print_note(line)

    try:
        with closing(display) if display is not None else nullcontext():
            ended = wait_for(runs, show=show, listener=TERMINAL)
    except KeyboardInterrupt:
        click.echo(detach_message([run.name for run in runs]), err=True)
        return INTERRUPTED
    if as_json:
        echo_json([status.as_json(attempts=False) for status in ended])
    elif not groups:
        if len(ended) > 1:
            show_table(ended, sys.stderr)
        for status in ended:
            if len(ended) == 1 or status.state != "COMPLETED":
                use = run_efficiency(status)
                write_lines(summary(status, use=use, colour=wants_colour(sys.stderr)), sys.stderr)
    return 0 if all(status.state == "COMPLETED" for status in ended) else 1


def _attached(run: Run, job_id: str) -> int:
    """Follow a run on hosts without a scheduler, which ends with this command."""
    from hpc_launch.runs.submitting.attached_run import attached
    from hpc_launch.schedulers.local.local_jobs import host_with

    try:
        with attached(RunFolder(run.path), job_id) as failure:
            if failure:
                click.echo(f"warning: the run does not end with this command: {failure}", err=True)
            host = host_with(run.path)
            return follow([run]) if host is None else run_there(host, ["watch", str(run.path)])
    except KeyboardInterrupt:
        click.echo(detach_message([run.name]), err=True)
        return INTERRUPTED
