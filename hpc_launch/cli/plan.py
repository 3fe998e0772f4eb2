"""`plan`: show layout, batch, memory, walltime and cost of a job before it is submitted."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_launch.api.job_calls import layouts, plan
from hpc_launch.api.run_calls import find
from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import errors
from hpc_launch.cli.shared_options import complete_run, echo_answer, echo_json, json_option, of_a_job
from hpc_launch.cli.terminal import TERMINAL
from hpc_launch.view.layout_table import layout_lines, layouts_json
from hpc_launch.view.plan_text import plan_json, plan_lines
from hpc_launch.view.terminal import write_lines


@click.command("plan")
@of_a_job
@click.option(
    "--pace-of",
    "run",
    metavar="RUN",
    shell_complete=complete_run,
    help="Take seconds per step, checkpoint cost and failures from an earlier run.",
)
@click.option(
    "--search", "compare", is_flag=True, help="List the layouts that fit, the fastest first, by a rough estimate."
)
@json_option
def command(
    job: Path,
    site: str | None,
    sets: tuple[str, ...],
    run: str | None,
    compare: bool,
    as_json: bool,
) -> int:
    """Show layout, batch, memory per GPU, walltime and cost of a job. Nothing is submitted.

    Exits with 3 if the job has errors.

    \b
    hpc-launch plan job.yaml --site mycluster
    hpc-launch plan job.yaml --set nodes=4 --pace-of @last
    hpc-launch plan job.yaml --search
    """
    earlier = find(run, listener=TERMINAL) if run is not None else None
    if compare:
        found = layouts(job, site=site, set=sets, pace_of=earlier)
        echo_answer(layouts_json(found), layout_lines(found), as_json=as_json)
        return 0 if found.found.layouts else Refused.exit_code
    planned = plan(job, site=site, set=sets, pace_of=earlier, listener=TERMINAL)
    if as_json:
        echo_json(plan_json(planned))
    else:
        write_lines(list(plan_lines(planned)))
        if planned.detected is not None:
            TERMINAL.say(f"site {planned.site}: {planned.detected}")
        TERMINAL.warn(planned.findings)
    return Refused.exit_code if errors(planned.findings) else 0
