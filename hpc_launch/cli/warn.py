"""Warnings and remarks on stderr, so that stdout stays data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpc_launch.base.findings import Finding


def warn(findings: Sequence[Finding]) -> None:
    """Show each finding with its hint."""
    show_findings(findings, err=True)


def tell(because: str | None, site: str, findings: Sequence[Finding]) -> None:
    """Which site was taken, where nobody named it, and the warnings."""
    if because is not None:
        say(f"site {site}: {because}")
    warn(findings)


def say(text: str) -> None:
    """A line on stderr that leaves the terminal as it is, whatever it quotes."""
    from hpc_launch.spec.shell_text import visible

    click.echo(visible(text), err=True)


def show_findings(findings: Sequence[Finding], *, err: bool) -> None:
    """Each finding and its hint, a line each: whatever a file's name holds, the terminal stays as it is."""
    from hpc_launch.spec.shell_text import visible

    for finding in findings:
        click.echo(visible(str(finding)), err=err)
        if finding.hint:
            click.echo(f"  hint: {visible(finding.hint)}", err=err)
