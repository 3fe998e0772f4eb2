"""Print findings on stdout as text, JSON or GitHub annotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.shared_options import echo_json

if TYPE_CHECKING:
    from hpc_launch.base.findings import Finding

format_option = click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="Output format.",
)


def report(findings: Sequence[Finding], style: str, clean: str) -> int:
    """Print the findings; as text, print `clean` on stderr if there are none. Returns 3 if there are errors, else 0."""
    from hpc_launch.base.findings import errors

    if style == "json":
        echo_json([finding.as_json() for finding in findings])
    elif style == "github":
        for finding in findings:
            click.echo(_github_line(finding))
    else:
        from hpc_launch.cli.warn import show_findings

        show_findings(findings, err=False)
        if not findings:
            click.echo(clean, err=True)
    return 3 if errors(findings) else 0


def _github_line(finding: Finding) -> str:
    """A GitHub workflow command, escaped as GitHub's toolkit does."""
    from hpc_launch.job.shell_text import visible

    place = finding.place
    fields = {"file": place.file, "line": place.line, "col": place.column} if place else {}
    where = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in fields.items() if value is not None)
    text = finding.message + (f" ({finding.hint})" if finding.hint else "")
    return visible(f"::{finding.severity} {where},title={finding.code}::{_escaped(text, '')}")


def _escaped(text: str, extra: str) -> str:
    for character in "%\r\n" + extra:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
