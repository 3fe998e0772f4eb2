"""`render`: the script to stdout or a file. Needs no scheduler."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_launch.cli.shared_options import job_argument, set_option, site_option


@click.command("render")
@job_argument
@site_option
@set_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the script to FILE.", metavar="FILE")
def command(job: Path, site: str | None, sets: tuple[str, ...], output: Path | None) -> None:
    """Print the script of a job: the same bytes that submit would hand to the scheduler.

    \b
    hpc-launch render job.yaml --site mycluster | less
    """
    from hpc_launch.cli.warn import tell
    from hpc_launch.drive.prepare import make_ready

    ready = make_ready(job, site=site, sets=sets)
    tell(ready.loaded.detected, ready.plan.site, ready.warnings)
    if output is None:
        click.echo(ready.script, nl=False)
        return
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.files import write_output

    try:
        write_output(output, ready.script)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", "name another file with -o") from error
