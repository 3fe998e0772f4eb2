"""`plan`: show layout, batch, memory, walltime and cost of a job before it is submitted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import errors
from hpc_launch.cli.shared_options import complete_run, echo_json, job_argument, json_option, set_option, site_option
from hpc_launch.cli.terminal import TERMINAL, print_site_and_warnings
from hpc_launch.performance.measured_pace import MeasuredPace, measured_pace
from hpc_launch.performance.run_times import run_times
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.sbatch_options import charged_account
from hpc_launch.prepare.job_plan import job_layouts, job_plan
from hpc_launch.prepare.prepare import CheckedJob, check_job
from hpc_launch.runs.find_run import find_run
from hpc_launch.runs.run_index import user_index
from hpc_launch.schedulers.scheduler import Balance
from hpc_launch.schedulers.slurm.query_limits import balance
from hpc_launch.service.poll import poll_runs
from hpc_launch.view.layout_table import layout_lines, layouts_json
from hpc_launch.view.plan_text import plan_json, plan_lines
from hpc_launch.view.terminal import write_lines

MOST_PROCESSES = 1_000_000
"""Each is placed in its groups, which takes seconds for more."""


@click.command("plan")
@job_argument
@site_option
@set_option
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
    checked = check_job(job, site=site, sets=sets, anywhere=True)
    processes = checked.size.processes(checked.loaded.resolved.job.max_nodes) if checked.size else 0
    if processes > MOST_PROCESSES:
        raise UsageError(f"{processes:,} processes are too many to plan", f"plan at most {MOST_PROCESSES:,}")
    pace = _pace(run) if run is not None else None
    if compare:
        return _show_layouts(checked, pace, as_json=as_json)
    plan = job_plan(checked, pace=pace, balance=_balance(checked))
    if plan is None:
        raise Refused(checked.findings)
    if as_json:
        echo_json(plan_json(plan))
    else:
        write_lines(list(plan_lines(plan)))
        print_site_and_warnings(checked.loaded.detected, plan.site, checked.findings)
    return Refused.exit_code if errors(checked.findings) else 0


def _show_layouts(checked: CheckedJob, pace: MeasuredPace | None, *, as_json: bool) -> int:
    layouts = job_layouts(checked, pace)
    if as_json:
        echo_json(layouts_json(layouts))
    else:
        write_lines(list(layout_lines(layouts)))
    return 0 if layouts.found.layouts else Refused.exit_code


def _pace(run: str) -> MeasuredPace:
    index = user_index(os.environ)
    (status,) = poll_runs([find_run(run, index)], index)
    pace = measured_pace(status, run_times(status, time.time()), index)
    if pace is None:
        hint = "a run needs `progress: {step: …}`, a launcher other than `none`, and two steps at different times"
        raise UsageError(f"the pace of {status.run} is not known", hint)
    return pace


def _balance(checked: CheckedJob) -> Balance | None:
    """The account's budget, if this machine is the site."""
    resolved = checked.loaded.resolved
    if resolved.site.scheduler.type != "slurm" or resolved.elsewhere:
        return None
    account = charged_account(PlanDraft(resolved, []), checked.size)[0] if checked.size is not None else None
    with TERMINAL.doing("querying the account"):
        return balance(account)
