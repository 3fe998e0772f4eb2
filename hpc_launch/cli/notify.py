"""`notify`: try the receivers of a job's messages."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_launch.cli.lazy_group import LazyGroup
from hpc_launch.cli.shared_options import echo_json, job_argument, json_option, set_option, site_option

COMMANDS = {"test": "send a test message to the receivers of a job"}
"""Commands by name; `NAME` is implemented by `NAME_command`."""

NOT_SENT = 3


@click.group("notify", cls=LazyGroup, about=COMMANDS, load=lambda name: globals()[f"{name}_command"])
def command() -> None:
    """Try the receivers of a job's messages, before a night run depends on them.

    \b
    hpc-launch notify test job.yaml
    """


@click.command("test")
@job_argument
@site_option
@set_option
@json_option
def test_command(job: Path, site: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Send a test message to the webhook and the command of a job's `notify:`, from this machine. Nothing is submitted.

    Exits with 3 if a message did not arrive. Whether compute nodes reach the receiver, and whether Slurm's mails
    arrive, only a job shows.

    \b
    hpc-launch notify test job.yaml
    hpc-launch notify test job.yaml --json
    """
    from hpc_launch.cli.warn import warn
    from hpc_launch.job.job_file import has_sweep
    from hpc_launch.job.shell_text import visible
    from hpc_launch.prepare.prepare import prepare_job
    from hpc_launch.retry.notifications import send_test

    if has_sweep(job, sets):
        from hpc_launch.prepare.prepare_sweep import prepare_sweep

        prepared = prepare_sweep(job, site=site, sets=sets).first
    else:
        prepared = prepare_job(job, site=site, sets=sets)
    warn(prepared.warnings)
    results = send_test(prepared.plan)
    if as_json:
        echo_json([{"channel": one.channel, "state": one.state, "why": one.why or None} for one in results])
    else:
        for one in results:
            click.echo(visible(f"{one.channel}: {one.state}{f', {one.why}' if one.why else ''}"))
        if not results:
            click.echo("`notify:` names no webhook and no command", err=True)
    return 0 if results and all(one.state == "sent" for one in results) else NOT_SENT
