"""`doctor`, `drill` and `notify`: try a job before it waits in a queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec import to_builtins

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.cli.shared_options import LazyGroup, echo_answer, json_option, of_a_job, set_option, site_option
from hpc_launch.cli.terminal import TERMINAL
from hpc_launch.job.job_file import JobSource, has_sweep
from hpc_launch.job.shell_text import visible
from hpc_launch.preflight.bench import bench_level
from hpc_launch.preflight.login_checks import job_for_hosts, send_test, static_levels
from hpc_launch.preflight.short_run import Context, Level, ladder, node_level
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.prepare.prepare_sweep import prepare_sweep
from hpc_launch.runs.run_index import user_index
from hpc_launch.schedulers.scheduler import scheduler_for
from hpc_launch.service.drill import drill
from hpc_launch.service.submit import warn_about_shared_checkpoints
from hpc_launch.site_tools.site_nodes import site_hosts


@click.command("doctor")
@click.argument("job", required=False, type=click.Path(path_type=Path, readable=False))
@site_option
@set_option
@click.option("--no-job", is_flag=True, help="Submit nothing: leave out the check of the nodes.")
@click.option(
    "--ladder",
    "climb",
    is_flag=True,
    help="Run the training itself on one GPU, one node, two nodes, then as asked, each until it has made two steps.",
)
@click.option(
    "--bench",
    "measure",
    is_flag=True,
    help="Measure the bandwidth of collectives over message sizes, and report what changed since the last time.",
)
@json_option
def doctor_command(
    job: Path | None, site: str | None, sets: tuple[str, ...], no_job: bool, climb: bool, measure: bool, as_json: bool
) -> int:
    """Check a job on every level, up to the first that fails: the job file, its software as far as this machine can
    tell, the limits and reservations of the queue, and the nodes, by a short job of the same size that ends after the
    node check. Exits with 3 if a level fails. Without a job file, all hosts of a site without Slurm are checked.

    \b
    hpc-launch doctor job.yaml
    hpc-launch doctor job.yaml --ladder --set time=00:10:00
    hpc-launch doctor job.yaml --bench
    hpc-launch doctor --site lab
    """
    source: JobSource | None = job
    if source is None:
        site = site or os.environ.get("HPC_LAUNCH_SITE")
        if site is None or climb:
            hint = "name one; only the hosts of a site without Slurm are checked without: --site NAME"
            raise UsageError("no job file", hint)
        source = job_for_hosts(len(site_hosts(site)))
    return _report(_levels(source, site, sets, no_job=no_job, climb=climb, measure=measure), as_json=as_json)


def _report(levels: Iterator[Level], *, as_json: bool) -> int:
    """Print each level as it comes, up to the first that fails."""
    found = []
    for level in levels:
        found.append(level)
        if not as_json:
            for number, line in enumerate(level.lines):
                head = f"{level.name:<14}{level.state:<13}" if number == 0 else " " * 27
                click.echo(head + visible(line))
        if level.state == "failed":
            break
    echo_answer(to_builtins(found), [], as_json=as_json)
    return Refused.exit_code if any(level.state == "failed" for level in found) else 0


def _levels(
    job: JobSource, site: str | None, sets: tuple[str, ...], *, no_job: bool, climb: bool, measure: bool
) -> Iterator[Level]:
    try:
        prepared = prepare_job(job, site=site, sets=sets)
    except Refused as refused:
        yield Level("job", "failed", tuple(map(str, refused.findings)))
        return
    scheduler = scheduler_for(prepared.plan.submitted_to, prepared.plan.cluster)
    yield from static_levels(job, prepared, scheduler, site, sets)
    if no_job:
        return
    index = user_index()
    context = Context(scheduler, TERMINAL.say, index)
    yield node_level(job, prepared, context, site=site, sets=sets)
    if measure:
        yield bench_level(job, prepared, context, site=site, sets=sets)
    if climb:
        warn_about_shared_checkpoints(prepared.plan, index, TERMINAL, trial="the ladder")
        yield from ladder(job, prepared, context, site=site, sets=sets)


@click.command("drill")
@of_a_job
@click.option("--preempt", is_flag=True, help="Signal as a preemption does: SIGTERM to the job steps.")
@json_option
def drill_command(job: Path, site: str | None, sets: tuple[str, ...], preempt: bool, as_json: bool) -> int:
    """Run a short job, warn it as before its time limit, and check that it saves a checkpoint and the next attempt
    resumes from it.

    `drill:` in the job file sets what differs from the real job. Exits with 0 if the training is ready, 1 if it is
    not, 3 if the job is rejected.

    \b
    hpc-launch drill job.yaml --set nodes=1 --set time=00:10:00
    """
    outcome = drill(job, user_index(), TERMINAL, site=site, sets=sets, preempt=preempt)
    times = f"warned at step {outcome.warned_at_step}, saved after {outcome.saved_after_s} s"
    ready = f"ready: {times}, resumed at step {outcome.resumed_at_step}"
    text = ready if outcome.good else f"not ready: {visible(outcome.fault or '')}"
    echo_answer(outcome.as_json(), [text], as_json=as_json)
    return 0 if outcome.good else 1


@click.group("notify", cls=LazyGroup)
def notify_command() -> None:
    """Try the receivers of a job's messages, before a night run depends on them.

    \b
    hpc-launch notify test job.yaml
    """


@notify_command.command("test", short_help="send a test message to the receivers of a job")
@of_a_job
@json_option
def test_command(job: Path, site: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Send a test message to the webhook and the command of a job's `notify:`, from this machine. Nothing is submitted.

    Exits with 3 if a message did not arrive. Whether compute nodes reach the receiver, and whether Slurm's mails
    arrive, only a job shows.

    \b
    hpc-launch notify test job.yaml
    hpc-launch notify test job.yaml --json
    """
    ready = prepare_sweep(job, site=site, sets=sets).first if has_sweep(job, sets) else None
    prepared = ready or prepare_job(job, site=site, sets=sets)
    TERMINAL.warn(prepared.warnings)
    results = send_test(prepared.plan)
    found = [{"channel": one.channel, "state": one.state, "why": one.why or None} for one in results]
    lines = [visible(f"{one.channel}: {one.state}{f', {one.why}' if one.why else ''}") for one in results]
    note = "" if results else "`notify:` names no webhook and no command"
    echo_answer(found, lines, note, as_json=as_json)
    return 0 if results and all(one.state == "sent" for one in results) else Refused.exit_code
