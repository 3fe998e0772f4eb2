"""`render`: write the job's script to stdout or a file, without a scheduler."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_launch.cli.shared_options import job_argument, set_option, site_option


@click.command("render")
@job_argument
@site_option
@set_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to FILE instead of stdout.", metavar="FILE"
)
def command(job: Path, site: str | None, sets: tuple[str, ...], output: Path | None) -> None:
    """Print the script of a job, byte for byte as submit passes it to the scheduler.

    \b
    hpc-launch render job.yaml --site mycluster | less
    hpc-launch render job.yaml --site mycluster -o script.sh
    """
    from hpc_launch.cli.warn import print_site_and_warnings
    from hpc_launch.job.job_file import has_sweep
    from hpc_launch.job.shell_text import visible
    from hpc_launch.prepare.prepare import prepare_job

    if has_sweep(job, sets):
        from hpc_launch.job.sweep_points import label
        from hpc_launch.prepare.prepare_sweep import prepare_sweep

        sweep = prepare_sweep(job, site=site, sets=sets, anywhere=True)
        prepared_job = sweep.first
        one = f"the script of point {sweep.points[0].number} of {len(sweep.points)}: {label(sweep.points[0].values)}"
        click.echo(visible(one), err=True)
    else:
        prepared_job = prepare_job(job, site=site, sets=sets, anywhere=True)
    print_site_and_warnings(prepared_job.loaded.detected, prepared_job.plan.site, prepared_job.warnings)
    if output is None:
        click.echo(prepared_job.script, nl=False)
        return
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.files import write_output

    try:
        write_output(output, prepared_job.script)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", "name another file with -o") from error
