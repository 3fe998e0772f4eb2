"""`sites detect`: detect the site profile of this machine, and say why."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.warn import print_note


@click.command("detect")
@json_option
def command(as_json: bool) -> int:
    """Detect the site that a job without `site:` uses on this machine. Exits with 3 if none or several match,
    and with 4 if only the Slurm controller could tell and does not answer.

    Checks, in this order: environment variables, host names, files, and Slurm's ClusterName.

    \b
    hpc-launch sites detect
    """
    from hpc_launch.job.shell_text import visible
    from hpc_launch.prepare.detect_site import detect_site

    detection = detect_site()
    chosen = detection.chosen
    code = 0 if chosen else 3 if detection.unreachable is None else 4
    if as_json:
        answer = {
            "site": chosen.name if chosen else None,
            "way": chosen.method if chosen else None,
            "because": chosen.reason if chosen else None,
            "file": str(chosen.path) if chosen else None,
            "matches": [{"site": one.name, "way": one.method, "because": one.reason} for one in detection.matches],
            "cluster": detection.cluster,
            "unreachable": detection.unreachable,
            "hint": None if chosen else detection.hint,
            "unread": [{"file": str(one.path), "fault": one.fault} for one in detection.unread],
        }
        echo_json(answer)
        return code
    for one in detection.unread:
        print_note(f"cannot read: {one.fault}")
    if chosen is None:
        print_note(detection.message)
        print_note(f"  hint: {detection.hint}")
        return code
    click.echo(visible(f"{chosen.name}  {chosen.reason}"))
    return 0
