"""Findings as the answer of a verb, on stdout: for people, programs and code review."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.shared_options import echo_json

if TYPE_CHECKING:
    from hpc_launch.base.findings import Finding

format_option = click.option(
    "--format", "style", type=click.Choice(["text", "json", "github"]), default="text", show_default=True
)


def report(findings: Sequence[Finding], style: str, clean: str) -> int:
    """Print the findings, or say on stderr that it is `clean` where people read. The exit code: 3 for an error."""
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
    """A workflow command; its escapes are those of GitHub's toolkit."""
    from hpc_launch.spec.shell_text import visible

    place = finding.place
    fields = {"file": place.file, "line": place.line, "col": place.column} if place else {}
    where = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in fields.items() if value is not None)
    text = finding.message + (f" ({finding.hint})" if finding.hint else "")
    return visible(f"::{finding.severity} {where},title={finding.code}::{_escaped(text, '')}")


def _escaped(text: str, more: str) -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
