"""Ask before a job is submitted that may cost more than the user or the site wants."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpc_launch.prepare.prepare import PreparedJob


def confirm_cost(prepared_job: PreparedJob, jobs: int = 1) -> None:
    """Ask if so many such jobs may use more GPU-hours than `confirm_gpu_hours`.

    Raises Refused for no, or without a terminal.
    """
    plan, resolved = prepared_job.plan, prepared_job.loaded.resolved
    most, time_s = resolved.job.confirm_gpu_hours, plan.time_limit_s
    gpus = (plan.nodes + plan.spares) * plan.gpus_per_node
    if most is None or time_s is None or jobs * gpus * time_s <= most * 3600:
        return
    from hpc_launch.base.errors import Refused
    from hpc_launch.base.finding_codes import FindingCode
    from hpc_launch.base.findings import Finding
    from hpc_launch.cli.warn import print_note
    from hpc_launch.job.units import format_time

    hours = jobs * gpus * time_s / 3600
    what = f"{jobs} points with {gpus} GPUs" if jobs > 1 else f"{gpus} GPUs"
    message = f"{what} for {format_time(time_s)} may use {hours:,.0f} GPU-hours, more than {most:,g}"
    if sys.stdin.isatty() and sys.stderr.isatty():
        print_note(message)
        if click.confirm("submit it?", err=True):
            return
    hint = "request fewer GPUs or less time, or add `--yes`"
    raise Refused([Finding(FindingCode.OVER_BUDGET, message, resolved.place("confirm_gpu_hours"), hint)])
