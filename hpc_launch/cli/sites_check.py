"""`sites check`: look through profiles, for a team's CI."""

from __future__ import annotations

import click

from hpc_launch.cli.findings_report import format_option, report
from hpc_launch.cli.shared_options import complete_site, json_option


@click.command("check")
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE|FOLDER...", shell_complete=complete_site)
@click.option("--update-golden", is_flag=True, help="Write the golden scripts anew; look at what changes.")
@format_option
@click.option("--live", is_flag=True, help="Hold the profile against the cluster whose login node this is.")
@json_option
def command(profiles: tuple[str, ...], update_golden: bool, style: str, live: bool, as_json: bool) -> int:
    """Check profiles that are to be shared: types, sources and their age, nobody's account, and that the scripts of the
    folder `golden` beside them are still the same. Exit code 3 where there is a fault.

    \b
    hpc-launch sites check sites/
    hpc-launch sites check --format github sites/mycluster.yaml
    hpc-launch sites check --live mycluster
    """
    if live:
        from hpc_launch.cli.sites_live import check_live

        return check_live(profiles, as_json=as_json or style == "json")
    from hpc_launch.base.errors import UsageError
    from hpc_launch.site_tools.check_profile import check_all

    try:
        count, findings = check_all(profiles, update_golden=update_golden)
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename}: {error.strerror}", "golden scripts lie beside the profile"
        ) from error
    clean = f"{count} profile{'s' if count > 1 else ''} without a fault"
    return report(findings, "json" if as_json else style, clean)
