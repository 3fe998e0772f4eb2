"""`explain`: each value of a job and its script, with the layer, file and line that set it."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_launch.cli.shared_options import echo_json, job_argument, json_option, set_option, site_option


@click.command("explain")
@job_argument
@click.argument("key", required=False)
@site_option
@set_option
@json_option
def command(job: Path, key: str | None, site: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Show where values are set: keys of the job, #SBATCH directives and variables of the script.

    A KEY that starts with `site.` is a key of the site profile.

    \b
    hpc-launch explain job.yaml
    hpc-launch explain job.yaml env.NCCL_DEBUG
    hpc-launch explain job.yaml --cpus-per-task
    hpc-launch explain job.yaml site.queues
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.prepare.explain import explain, explain_site
    from hpc_launch.prepare.prepare import prepare_job

    prepared_job = prepare_job(job, site=site, sets=sets)
    lines = explain_site(prepared_job) if key is not None and key.startswith("site.") else explain(prepared_job)
    if key is not None:
        wanted = key.removeprefix("--").removeprefix("$")
        chosen = [line for line in lines if wanted in (line.key, line.name) or line.key.startswith(f"{wanted}.")]
        if not chosen:
            import difflib

            matches = difflib.get_close_matches(wanted, [line.key for line in lines], 1)
            hint = f"did you mean `{matches[0]}`?" if matches else "without KEY, `explain` lists all keys"
            raise UsageError(f"unknown key `{key}`", hint)
        lines = chosen
    if as_json:
        echo_json([line.as_json() for line in lines])
        return
    for line in lines:
        click.echo(str(line))
