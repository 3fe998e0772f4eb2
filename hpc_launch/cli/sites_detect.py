"""`sites detect`: which profile fits this machine, and why."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.warn import say


@click.command("detect")
@json_option
def command(as_json: bool) -> int:
    """Say which site this machine is of, as a job that names none would find it. Exit code 3 if that is not clear.

    Tried in this order: variables that a site sets, names of this host, files, and Slurm's name of the cluster.

    \b
    hpc-launch sites detect
    """
    from hpc_launch.drive.detect_site import detect_site
    from hpc_launch.spec.shell_text import visible

    found = detect_site()
    chosen = found.chosen
    if as_json:
        answer = {
            "site": chosen.name if chosen else None,
            "way": chosen.method if chosen else None,
            "because": chosen.reason if chosen else None,
            "file": str(chosen.path) if chosen else None,
            "matches": [{"site": one.name, "way": one.method, "because": one.reason} for one in found.matches],
            "cluster": found.cluster,
            "hint": None if chosen else found.hint,
            "unread": [{"file": str(one.path), "fault": one.fault} for one in found.unread],
        }
        echo_json(answer)
        return 0 if chosen else 3
    for one in found.unread:
        say(f"not read: {one.fault}")
    if chosen is None:
        say(found.message)
        say(f"  hint: {found.hint}")
        return 3
    click.echo(visible(f"{chosen.name}  {chosen.reason}"))
    return 0
