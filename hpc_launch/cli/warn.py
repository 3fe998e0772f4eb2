"""Warnings on stderr, so that stdout stays data."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpc_launch.base.findings import Finding


def warn(findings: Sequence[Finding]) -> None:
    """Show each finding with its hint."""
    for finding in findings:
        click.echo(str(finding), err=True)
        if finding.hint:
            click.echo(f"  hint: {finding.hint}", err=True)
