"""`sites check --live`: where a profile and its cluster differ by now."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpc_launch.cli.shared_options import echo_json


def check_live(profiles: Sequence[str], *, as_json: bool) -> int:
    """A line for each difference on stdout. Exit code 3 if there is one."""
    from hpc_launch.site_tools.drift import drift
    from hpc_launch.spec.shell_text import visible
    from hpc_launch.view.terminal import patience

    with patience("asking Slurm about the cluster"):
        found = [(name, row) for name in profiles for row in drift(name)]
    if as_json:
        echo_json([{"site": name, **row.as_json()} for name, row in found])
        return 3 if found else 0
    for name, row in found:
        says, now = row.profile or "nothing", row.cluster or "nothing"
        click.echo(visible(f"{name}: {row.key}: the profile says {says}, the cluster {now}: {row.effect}"))
    if not found:
        click.echo(f"{', '.join(profiles)}: as the cluster says", err=True)
    return 3 if found else 0
