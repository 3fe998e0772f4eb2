"""What a plan needs beside the job: a size that can be planned, the pace of an earlier run, the account's budget."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpc_launch.base.errors import UsageError
from hpc_launch.job.job_file import JobSource
from hpc_launch.performance.measured_pace import MeasuredPace, measured_pace
from hpc_launch.performance.run_times import run_times
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.sbatch_options import charged_account
from hpc_launch.prepare.prepare import CheckedJob, check_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import user_index
from hpc_launch.schedulers.scheduler import Balance
from hpc_launch.schedulers.slurm.query_limits import balance
from hpc_launch.service.listener import Listener
from hpc_launch.service.poll import poll_runs

MOST_PROCESSES = 1_000_000
"""Each is placed in its groups, which takes seconds for more."""


def checked_for_plan(job: JobSource, site: str | None, sets: Sequence[str]) -> CheckedJob:
    """A job for any site. Raises Refused, and UsageError if it is too large to plan."""
    checked = check_job(job, site=site, sets=sets, anywhere=True)
    processes = checked.size.processes(checked.loaded.resolved.job.max_nodes) if checked.size else 0
    if processes > MOST_PROCESSES:
        raise UsageError(f"{processes:,} processes are too many to plan", f"plan at most {MOST_PROCESSES:,}")
    return checked


def pace_of_run(run: RunFolder) -> MeasuredPace:
    """The pace, checkpoint cost and failures of an earlier run. Raises UsageError if its pace is not known."""
    index = user_index()
    (status,) = poll_runs([run], index)
    pace = measured_pace(status, run_times(status, time.time()), index)
    if pace is None:
        hint = "a run needs `progress: {step: …}`, a launcher other than `none`, and two steps at different times"
        raise UsageError(f"the pace of {status.run} is not known", hint)
    return pace


def account_balance(checked: CheckedJob, listener: Listener) -> Balance | None:
    """The account's budget, if this machine is the site."""
    resolved = checked.loaded.resolved
    if resolved.site.scheduler.type != "slurm" or resolved.elsewhere:
        return None
    account = charged_account(PlanDraft(resolved, []), checked.size)[0] if checked.size is not None else None
    with listener.doing("querying the account"):
        return balance(account)
