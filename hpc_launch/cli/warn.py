"""Warnings and notes on stderr, so that stdout carries only data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpc_launch.base.findings import Finding


def warn(findings: Sequence[Finding]) -> None:
    """Print findings with their hints on stderr."""
    show_findings(findings, err=True)


def print_site_and_warnings(detected: str | None, site: str, findings: Sequence[Finding]) -> None:
    """Print the site, if it was detected rather than named, and the warnings."""
    if detected is not None:
        print_note(f"site {site}: {detected}")
    warn(findings)


def print_note(text: str) -> None:
    """Print a line on stderr with control characters escaped."""
    from hpc_launch.job.shell_text import visible

    click.echo(visible(text), err=True)


def show_findings(findings: Sequence[Finding], *, err: bool) -> None:
    """Print each finding and its hint on a line of its own, with control characters escaped."""
    from hpc_launch.job.shell_text import visible

    for finding in findings:
        click.echo(visible(str(finding)), err=err)
        if finding.hint:
            click.echo(f"  hint: {visible(finding.hint)}", err=err)
