"""`validate`: check job files and report every error as text, JSON or GitHub annotations."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_launch.cli.findings_report import format_option, report
from hpc_launch.cli.shared_options import json_option, set_option, site_option


@click.command("validate")
@click.argument("jobs", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="JOB...")
@site_option
@set_option
@format_option
@json_option
def command(jobs: tuple[Path, ...], site: str | None, sets: tuple[str, ...], style: str, as_json: bool) -> int:
    """Check job files against their site and report all errors at once. Exits with 3 if there are errors.

    \b
    hpc-launch validate job.yaml --site mycluster
    hpc-launch validate --format github jobs/*.yaml
    """
    from hpc_launch.prepare.prepare import validate_job

    findings = [finding for job in jobs for finding in validate_job(job, site=site, sets=sets)]
    clean = f"{len(jobs)} job file{'s' if len(jobs) > 1 else ''} checked, no errors"
    return report(findings, "json" if as_json else style, clean)
