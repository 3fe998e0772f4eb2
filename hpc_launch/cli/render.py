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
@click.option("--standalone", is_flag=True, help="Put the parts of runtime.sh into the script, to start it by hand.")
def command(job: Path, site: str | None, sets: tuple[str, ...], output: Path | None, *, standalone: bool) -> None:
    """Print the script of a job, byte for byte as submit passes it to the scheduler.

    It sources runtime.sh, the same file for all jobs: -o writes it beside FILE.

    \b
    hpc-launch render job.yaml --site mycluster | less
    hpc-launch render job.yaml --site mycluster --standalone -o script.sh
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
    from hpc_launch.script.render import render

    script = render(prepared_job.plan, standalone=True) if standalone else prepared_job.script
    if output is None:
        click.echo(script, nl=False)
        return
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.files import write_output
    from hpc_launch.script.parts import RUNTIME, runtime

    try:
        write_output(output, script)
        if not standalone and output.is_file():
            write_output(output.with_name(RUNTIME), runtime())
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", "name another file with -o") from error
