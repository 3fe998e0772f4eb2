"""`drill`: is the training ready for its end?"""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpc_launch.cli.shared_options import job_argument, json_option, set_option, site_option


@click.command("drill")
@job_argument
@site_option
@set_option
@click.option("--preempt", is_flag=True, help="Signal as a preemption with a grace time does, SIGTERM to the steps.")
@json_option
def command(job: Path, site: str | None, sets: tuple[str, ...], preempt: bool, as_json: bool) -> int:
    """Warn a short job as before its end: did a checkpoint appear, and did the next attempt go on from it?

    The job file's `drill:` says what is shorter. The exit code is 0 if all went well, 1 if the training is not
    ready, 3 if the job is refused.

    \b
    hpc-launch drill job.yaml --set nodes=1 --set time=00:10:00
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.cli.follow import tracker_of
    from hpc_launch.cli.warn import tell
    from hpc_launch.retry.drill_run import drill, ready_for_drill
    from hpc_launch.run.run_index import user_index
    from hpc_launch.schedulers.registry import scheduler_for

    ready, all_sets = ready_for_drill(job, site=site, sets=sets)
    tell(ready.loaded.detected, ready.plan.site, ready.warnings)
    if preempt and ready.plan.scheduler == "local":
        raise UsageError("this machine preempts nothing", "leave out --preempt, or name a site with Slurm")
    index = user_index(os.environ)
    outcome = drill(
        ready,
        all_sets,
        scheduler_for(ready.plan.scheduler),
        lambda run: tracker_of([run], index),
        preempt=preempt,
        index=index,
        say=lambda line: click.echo(line, err=True),
    )
    if as_json:
        import json

        click.echo(json.dumps(outcome.as_json()))
    elif outcome.good:
        click.echo(
            f"ready: warned at step {outcome.warned_at_step}, saved after {outcome.saved_after_s} s, "
            f"went on with step {outcome.resumed_at_step}"
        )
    else:
        click.echo(f"not ready: {outcome.fault}")
    return 0 if outcome.good else 1
