"""Plan a job before it is submitted, with the pace of an earlier run and the budget of its account."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.job.job_file import JobSource
from hpc_launch.performance.measured_pace import MeasuredPace, measured_pace
from hpc_launch.performance.run_times import run_times
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.sbatch_options import charged_account
from hpc_launch.prepare.job_plan import JobLayouts, JobPlan, job_layouts, job_plan
from hpc_launch.prepare.prepare import CheckedJob, check_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.schedulers.scheduler import Balance
from hpc_launch.schedulers.slurm.query_limits import balance
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import poll_runs

MOST_PROCESSES = 1_000_000
"""Each is placed in its groups, which takes seconds for more."""


def plan_job(
    job: JobSource,
    index: Index,
    listener: Listener = QUIET,
    *,
    site: str | None,
    sets: Sequence[str],
    earlier: RunFolder | None = None,
) -> JobPlan:
    """The plan of a job, with its errors among the findings.

    `earlier`: a run whose pace, checkpoint cost and failures count. Raises Refused if the job cannot be planned, and
    UsageError if it is too large or the pace of the run is not known.
    """
    checked = _checked(job, site, sets)
    pace = _pace(earlier, index) if earlier is not None else None
    plan = job_plan(checked, pace=pace, balance=_balance(checked, listener))
    if plan is None:
        raise Refused(checked.findings)
    return plan


def compare_layouts_of(
    job: JobSource, index: Index, *, site: str | None, sets: Sequence[str], earlier: RunFolder | None = None
) -> JobLayouts:
    """The layouts that the job could have. Raises as `plan_job` and `job_layouts`."""
    return job_layouts(_checked(job, site, sets), _pace(earlier, index) if earlier is not None else None)


def _checked(job: JobSource, site: str | None, sets: Sequence[str]) -> CheckedJob:
    checked = check_job(job, site=site, sets=sets, anywhere=True)
    processes = checked.size.processes(checked.loaded.resolved.job.max_nodes) if checked.size else 0
    if processes > MOST_PROCESSES:
        raise UsageError(f"{processes:,} processes are too many to plan", f"plan at most {MOST_PROCESSES:,}")
    return checked


def _pace(run: RunFolder, index: Index) -> MeasuredPace:
    (status,) = poll_runs([run], index)
    pace = measured_pace(status, run_times(status, time.time()), index)
    if pace is None:
        hint = "a run needs `progress: {step: …}`, a launcher other than `none`, and two steps at different times"
        raise UsageError(f"the pace of {status.run} is not known", hint)
    return pace


def _balance(checked: CheckedJob, listener: Listener) -> Balance | None:
    """The account's budget, if this machine is the site."""
    resolved = checked.loaded.resolved
    if resolved.site.scheduler.type != "slurm" or resolved.elsewhere:
        return None
    account = charged_account(PlanDraft(resolved, []), checked.size)[0] if checked.size is not None else None
    with listener.doing("querying the account"):
        return balance(account)
