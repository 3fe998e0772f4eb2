"""Submit what was checked: one job, a sweep or a pipeline, after what the user must hear or confirm about it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.base.json_records import read_record
from hpc_launch.job.job_file import JobSource, refuse_made_up, refuse_sweep
from hpc_launch.job.units import counted, format_time
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import PreparedJob, prepare_job
from hpc_launch.runs.checkpoint_files import rule_of
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.runs.records.run_info import CodeInfo
from hpc_launch.runs.records.submission import array_of
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.schedulers.scheduler import scheduler_for
from hpc_launch.service.check import CheckedFile, announce
from hpc_launch.service.listener import QUIET, Listener

if TYPE_CHECKING:
    from hpc_launch.prepare.submit_sweep import SweepProgress
    from hpc_launch.runs.groups.group_folder import SweepFolder
    from hpc_launch.runs.groups.pipeline_status import PipelineStatus


def confirm_cost(prepared: PreparedJob, listener: Listener, jobs: int = 1) -> None:
    """Ask if so many such jobs may use more GPU-hours than `confirm_gpu_hours`.

    Raises Refused for no, or where nobody answers.
    """
    plan, resolved = prepared.plan, prepared.loaded.resolved
    most, time_s = resolved.job.confirm_gpu_hours, plan.time_limit_s
    gpus = plan.gpus
    if most is None or time_s is None or jobs * gpus * time_s <= most * 3600:
        return
    hours = jobs * gpus * time_s / 3600
    what = f"{jobs} points with {counted(gpus, 'GPU')}" if jobs > 1 else counted(gpus, "GPU")
    message = f"{what} for {format_time(time_s)} may use {hours:,.0f} GPU-hours, more than {most:,g}"
    if listener.answers:
        listener.say(message)
        if listener.confirm("submit it?"):
            return
    hint = "request fewer GPUs or less time, or add `--yes` (in Python, `confirmed=True`)"
    raise Refused([Finding(FindingCode.OVER_BUDGET, message, resolved.place("confirm_gpu_hours"), hint)])


def warn_about_node_health(plan: LaunchPlan, listener: Listener) -> None:
    """Name reports on bad nodes that this user or the team cannot see."""
    if plan.recovery.ledger is not None:
        for problem in NodeHealthStore(plan.site, plan.recovery.ledger).problems():
            listener.say(f"warning: {problem}")


def warn_about_shared_checkpoints(
    plan: LaunchPlan, index: Index, listener: Listener, run: RunFolder | None = None, *, trial: str | None = None
) -> None:
    """Name the active runs that use the checkpoint folder of this plan; `run` is the plan's own.

    `trial`: the name of a trial whose checkpoints the real run would find.
    """
    rule = plan.continuation.checkpoint
    if rule is None or None in rule.dir:
        return  # each run has its own
    folder = os.path.realpath(rule.folder(""))
    if trial is not None:
        listener.say(f"warning: {trial} saves its checkpoints in {folder}, and other runs will resume from them")
        listener.say("  hint: use ${run.dir} in `checkpoint.dir`, or give the trial a folder of its own with --set")
    unfinished = [RunFolder(entry.folder) for entry in index.entries(unfinished=True)]
    others = [other for other in unfinished if run is None or other.path != run.path]
    rules = ((other, rule_of(other)) for other in others)
    sharing = [other for other, rule in rules if rule is not None and os.path.realpath(rule.folder) == folder]
    if not sharing:
        return
    from hpc_launch.service.poll import poll_runs

    for status in poll_runs(sharing, index, listener, drive=False):
        if not status.final:
            listener.say(
                f"warning: {status.run} ({status.state}) saves its checkpoints in {folder} too: "
                "each run may overwrite the checkpoints of the other and resume from them"
            )
            listener.say("  hint: use ${run.dir} in `checkpoint.dir`, or wait until that run has ended")


class Submitted(Struct, frozen=True, kw_only=True):
    """What was submitted: an attempt of a run, points of a sweep, or the first stages of a pipeline."""

    run: RunFolder
    job_ids: tuple[str, ...]
    script: Path | None = None
    size: str = ""
    """How many points or stages there are, as text."""
    left: str | None = None
    """Which points have no job yet, why, and who submits them, as text."""
    more: dict[str, Any] = {}
    """What `--json` adds for a sweep or a pipeline."""
    exit_code: int = 0
    """Not 0 where some of it could not be submitted."""

    def as_json(self) -> dict[str, Any]:
        """The object of `submit --json`."""
        first = next(iter(self.job_ids), None)
        script = str(self.script) if self.script is not None else None
        return {"run": self.run.name, "job_id": first, "script": script, "folder": str(self.run.path), **self.more}


def submit(
    checked: CheckedFile, index: Index, listener: Listener = QUIET, *, wait: bool = False, confirmed: bool = False
) -> Submitted:
    """Submit what `check_file` returned. The listener is asked before a job that may cost more than
    `confirm_gpu_hours`, unless that is `confirmed`.

    `wait`: wait for a scheduler that does not answer. The caller follows the run, so that nothing else drives it.

    Raises what `submit_new` and `submit_points` raise.
    """
    for job, number in () if confirmed else checked.jobs:
        confirm_cost(job, listener, number)
    warn_about_node_health(checked.first.plan, listener)
    if checked.stages is not None:
        from hpc_launch.prepare.prepare_pipeline import create_pipeline
        from hpc_launch.service.poll import poll_pipeline

        # It submits the stages that are due at once; the others follow when those are over.
        pipeline = create_pipeline(checked.stages, checked.sets, index=index)
        return submitted_stages(poll_pipeline(pipeline.run, index, listener))
    warn_about_shared_checkpoints(checked.first.plan, index, listener)
    if checked.sweep is not None:
        from hpc_launch.prepare.submit_sweep import create_sweep, submit_points

        plan, points = checked.first.plan, checked.sweep
        scheduler = scheduler_for(plan.submitted_to, plan.cluster)
        with listener.doing(f"submitting {counted(len(points.points), 'point')}") as doing:
            sweep = create_sweep(points, checked.sets, index=index)
            progress = submit_points(sweep, scheduler, prepared=points, index=index, wait=doing if wait else None)
        return submitted_points(sweep, progress)
    prepared = first_attempt(checked.first, checked.sets, exclude=checked.avoided)
    with listener.doing("submitting the job") as doing:
        scheduler = scheduler_for(prepared.scheduler, prepared.plan.cluster)
        submitted = submit_new(prepared, scheduler, index=index, wait=doing if wait else None)
    spec, info = checked.first.loaded.resolved.job, read_record(submitted[0].code_info, CodeInfo)
    why = info.why if info is not None else None
    if checked.first.plan.code is None and spec.script is not None and spec.code.snapshot != "off":
        why = "the script is neither in a git work tree nor in the folder of the job file"
    if why is not None:
        listener.say(f"note: the code is not copied into the run: {why}. Each attempt runs it as it is then")
    return submitted_run(*submitted)


def submit_here(
    job: JobSource, index: Index, listener: Listener = QUIET, *, site: str | None, sets: Sequence[str]
) -> Submitted:
    """Start a job inside the Slurm allocation of this process, or on this machine. Raises as `submit`."""
    refuse_sweep(job, sets, "run")
    refuse_made_up(job, "run")
    ready = prepare_job(job, site=site, sets=sets)
    announce(ready, listener, ready.warnings)
    kind = "local"
    if ready.plan.scheduler == "slurm":
        if "SLURM_JOB_ID" not in os.environ:
            hint = "create one with salloc, or queue the job with `hpc-launch submit`"
            raise UsageError("not inside a Slurm allocation", hint)
        kind = "allocation"
    warn_about_shared_checkpoints(ready.plan, index, listener)
    prepared = first_attempt(ready, sets, scheduler=kind)
    return submitted_run(*submit_new(prepared, scheduler_for(kind), index=index))


def submitted_run(run: RunFolder, attempt: AttemptFolder, job_id: str) -> Submitted:
    """What the submission of one attempt returned."""
    return Submitted(run=run, job_ids=(job_id,), script=attempt.script)


def submitted_points(
    sweep: SweepFolder, progress: SweepProgress, *, repeated_left: bool = False, exit_code: int = 0
) -> Submitted:
    """What a submission of points came to.

    `repeated_left`: points are left that had a job before, and that only `resubmit` submits.
    """
    left = None
    if progress.left:
        others = "a point that ends, or `status` or `watch` of the sweep,"
        who = f"`resubmit {sweep.name}`" if repeated_left else others
        left = f"{counted(progress.left, 'point is', 'points are')} left: {progress.why}; {who} submits them later"
    arrays, points = sweep.arrays(), len(sweep.record.points)
    return Submitted(
        run=sweep.run,
        job_ids=progress.job_ids,
        script=arrays[0].script if arrays else None,
        size=f"{points - progress.left} of {counted(points, 'point')}",
        left=left,
        more={"jobs": list(progress.job_ids), "points": points, "left": progress.left},
        exit_code=exit_code,
    )


def submitted_stages(status: PipelineStatus, exit_code: int = 0) -> Submitted:
    """What is submitted of a pipeline."""
    parts = [run for one in status.stages for run in ([p.status for p in one.sweep.points] if one.sweep else one.runs)]
    jobs = tuple(dict.fromkeys(array_of(run.job_id) for run in parts if run.job_id is not None and not run.final))
    states = {one.stage.name: one.state for one in status.stages}
    return Submitted(
        run=status.pipeline.run,
        job_ids=jobs,
        size=f"{len(states)} stages",
        more={"jobs": list(jobs), "stages": states},
        exit_code=exit_code,
    )
