"""What `submit`, `resubmit` and `run` do after submission."""

from __future__ import annotations

import click

from hpc_launch.runs.submitting.submit_attempt import Submitted


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

    if not job_id.startswith("ssh-"):
        return follow([run])
    from hpc_launch.cli.error_handler import INTERRUPTED
    from hpc_launch.cli.pass_on import run_there
    from hpc_launch.runs.submitting.attached_run import attached
    from hpc_launch.schedulers.ssh.hand_over_run import host_with
    from hpc_launch.view.state_text import detach_message

    try:
        with attached(run, job_id) as failure:
            if failure:
                click.echo(f"warning: the run does not end with this command: {failure}", err=True)
            host = host_with(run.path)
            return follow([run]) if host is None else run_there(host, ["watch", str(run.path)])
    except KeyboardInterrupt:
        click.echo(detach_message([run.name]), err=True)
        return INTERRUPTED
