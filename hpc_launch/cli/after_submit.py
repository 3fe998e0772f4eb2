"""What `submit`, `resubmit` and `run` do after submission."""

from __future__ import annotations

import click

from hpc_launch.run.submitting.submit_attempt import Submitted


def after_submission(submitted: Submitted, *, wait: bool, as_json: bool) -> int:
    """Print the run's name and job id; with `wait`, follow the run to its end. Returns the exit code."""
    run, attempt, job_id = submitted
    if as_json:
        import json

        answer = {"run": run.name, "job_id": job_id, "script": str(attempt.script), "folder": str(run.path)}
        click.echo(json.dumps(answer))
    else:
        click.echo(f"{run.name}  job {job_id}")
        if not wait:
            click.echo(f"follow it with: hpc-launch watch {run.name}", err=True)
    if not wait:
        return 0
    from hpc_launch.cli.follow import follow

    return follow([run])
