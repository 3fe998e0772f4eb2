"""`drill`: test that a training checkpoints and resumes when warned."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpc_launch.cli.shared_options import echo_json, job_argument, json_option, set_option, site_option
from hpc_launch.cli.terminal import TERMINAL


@click.command("drill")
@job_argument
@site_option
@set_option
@click.option("--preempt", is_flag=True, help="Signal as a preemption does: SIGTERM to the job steps.")
@json_option
def command(job: Path, site: str | None, sets: tuple[str, ...], preempt: bool, as_json: bool) -> int:
    """Run a short job, warn it as before its time limit, and check that it saves a checkpoint and the next attempt
    resumes from it.

    `drill:` in the job file sets what differs from the real job. Exits with 0 if the training is ready, 1 if it is
    not, 3 if the job is rejected.

    \b
    hpc-launch drill job.yaml --set nodes=1 --set time=00:10:00
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.job.shell_text import visible
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.schedulers.scheduler import scheduler_for
    from hpc_launch.service.before_submit import warn_about_shared_checkpoints
    from hpc_launch.service.check import announce
    from hpc_launch.service.drill import drill, ready_for_drill
    from hpc_launch.service.poll import tracker_of

    ready, all_sets = ready_for_drill(job, site=site, sets=sets)
    announce(ready, TERMINAL, ready.warnings)
    if preempt and ready.plan.scheduler == "local":
        raise UsageError("--preempt requires Slurm", "omit --preempt, or name a Slurm site with --site")
    index = user_index(os.environ)
    warn_about_shared_checkpoints(ready.plan, index, TERMINAL, trial="the drill")
    outcome = drill(
        ready,
        all_sets,
        scheduler_for(ready.plan.scheduler),
        lambda run: tracker_of([run], index),
        preempt=preempt,
        index=index,
        say=TERMINAL.say,
    )
    if as_json:
        echo_json(outcome.as_json())
    elif outcome.good:
        click.echo(
            f"ready: warned at step {outcome.warned_at_step}, saved after {outcome.saved_after_s} s, "
            f"resumed at step {outcome.resumed_at_step}"
        )
    else:
        click.echo(f"not ready: {visible(outcome.fault or '')}")
    return 0 if outcome.good else 1
