"""`sites check`: check profiles, e.g. in CI; with --live, compare one with its cluster."""

from __future__ import annotations

import click

from hpc_launch.cli.findings_report import format_option, report
from hpc_launch.cli.shared_options import complete_site, echo_json, json_option


@click.command("check")
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE|FOLDER...", shell_complete=complete_site)
@click.option("--update-golden", is_flag=True, help="Regenerate the golden scripts; review the changes.")
@format_option
@click.option("--live", is_flag=True, help="Compare the profile with this cluster.")
@json_option
def command(profiles: tuple[str, ...], update_golden: bool, style: str, live: bool, as_json: bool) -> int:
    """Check profiles before sharing them: types, sources and their age, no personal account, and unchanged scripts in
    the `golden` folder beside them. Exits with 3 if there are errors.

    With --live, prints every value in which the profile differs from the cluster.

    \b
    hpc-launch sites check sites/
    hpc-launch sites check --format github sites/mycluster.yaml
    hpc-launch sites check --live mycluster
    """
    if live:
        return _check_live(profiles, as_json=as_json or style == "json")
    from hpc_launch.base.errors import UsageError
    from hpc_launch.site_tools.check_profile import check_all

    try:
        count, findings = check_all(profiles, update_golden=update_golden)
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename}: {error.strerror}", "golden scripts are stored beside the profile"
        ) from error
    clean = f"{count} profile{'s' if count > 1 else ''} checked, no errors"
    return report(findings, "json" if as_json else style, clean)


def _check_live(profiles: tuple[str, ...], *, as_json: bool) -> int:
    """Print a line on stdout for each difference from the cluster. Returns 3 if there is one."""
    from hpc_launch.job.shell_text import visible
    from hpc_launch.site_tools.drift import drift
    from hpc_launch.view.terminal import waiting_notice

    with waiting_notice("querying Slurm about the cluster"):
        rows = [(name, row) for name in profiles for row in drift(name)]
    if as_json:
        from msgspec.structs import asdict

        echo_json([{"site": name, **asdict(row)} for name, row in rows])
        return 3 if rows else 0
    for name, row in rows:
        ours, theirs = row.profile or "nothing", row.cluster or "nothing"
        click.echo(visible(f"{name}: {row.key}: {ours} in the profile, {theirs} on the cluster: {row.effect}"))
    if not rows:
        click.echo(f"{', '.join(profiles)}: no differences from the cluster", err=True)
    return 3 if rows else 0
