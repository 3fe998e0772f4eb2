"""`validate`: all faults of job files, for people, programs and code review."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_launch.base.findings import Finding, errors
from hpc_launch.cli.options import set_option, site_option


@click.command("validate")
@click.argument("jobs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="JOB...")
@site_option
@set_option
@click.option("--format", "style", type=click.Choice(["text", "json", "github"]), default="text", show_default=True)
def command(jobs: tuple[Path, ...], site: str | None, sets: tuple[str, ...], style: str) -> int:
    """Check job files against their site, and show every fault at once. Exit code 3 where there is one.

    \b
    hpc-launch validate job.yaml --site mycluster
    hpc-launch validate --format github jobs/*.yaml
    """
    from hpc_launch.drive.prepare import all_findings

    findings = [finding for job in jobs for finding in all_findings(job, site=site, sets=sets)]
    if style == "json":
        import json

        click.echo(json.dumps([finding.as_json() for finding in findings], indent=2, ensure_ascii=False))
    elif style == "github":
        for finding in findings:
            click.echo(github_line(finding))
    else:
        from hpc_launch.cli.warn import show_findings

        show_findings(findings, err=False)
        if not findings:
            click.echo(f"{len(jobs)} job file{'s' if len(jobs) > 1 else ''} without a fault", err=True)
    return 3 if errors(findings) else 0


def github_line(finding: Finding) -> str:
    """A workflow command; its escapes are those of GitHub's toolkit."""
    place = finding.place
    fields = {"file": place.file, "line": place.line, "col": place.column} if place else {}
    where = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in fields.items() if value is not None)
    text = finding.message + (f" ({finding.hint})" if finding.hint else "")
    return f"::{finding.severity} {where},title={finding.code}::{_escaped(text, '')}"


def _escaped(text: str, more: str) -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
