"""Cancel runs, sweeps, pipelines and stages, in any state."""

from __future__ import annotations

import os

from hpc_launch.retry.drivers import Schedulers
from hpc_launch.runs.groups.group_folder import PipelineFolder, StageRecord, SweepFolder, as_pipeline, without_run
from hpc_launch.runs.groups.job_arrays import cancel_sweep
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import MAY_COME_BACK, Reader
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import poll_pipeline, poll_runs


def cancel(run: RunFolder, index: Index, listener: Listener = QUIET) -> str:
    """Cancel a run, or all of a sweep, a pipeline or a stage, and return the outcome as text.

    Raises Unreachable where a job that may be running could not be cancelled; UsageError if the folder is not a run's.
    """
    pipeline, stage = as_pipeline(run), None
    if not run.exists and run.pipeline is not None:
        pipeline, stage = without_run(run)
    if pipeline is not None:
        return _cancel_stages(pipeline, stage, index, listener)
    if os.path.exists(run.sweep_info):
        ended = cancel_sweep(SweepFolder(run), Schedulers().of(run))
        return f"{run.name}: cancelled job {', '.join(ended)}" if ended else f"{run.name}: no job to cancel"
    (before,) = poll_runs([run], index, listener, drive=False)
    # Another attempt may follow a failure that has no verdict yet, and a requeue may follow a lost node.
    open_end = before.state == "FAILED" and before.undecided
    if before.final and not open_end and not any(one.state in MAY_COME_BACK for one in before.attempts[-1:]):
        return f"{run.name} is already over: {before.state}"
    cancelled = cancel_run(run, Schedulers().of(run), undecided=open_end)
    if cancelled:
        return f"{run.name}: cancelled job {', '.join(cancelled)}"
    (after,) = poll_runs([run], index, listener, drive=False)
    if after.state == "SUBMITTING":
        return f"{run.name} is still being submitted and cannot be cancelled yet; try again"
    files = [Reader().read(attempt) for attempt in run.attempts()[-1:]]
    if any(one.void and one.job_id and one.cancel is not None and one.cancel.sent is None for one in files):
        return (
            f"{run.name}: CANCELLED; the scheduler does not answer, so job {after.job_id} may stay in the queue; "
            "it exits without training, and the next `hpc-launch list` removes it"
        )
    return f"{run.name}: {after.state}, no job to cancel"


def _cancel_stages(pipeline: PipelineFolder, stage: StageRecord | None, index: Index, listener: Listener) -> str:
    """Cancel a pipeline, or a stage of it whose folder does not exist: it has not begun, or runs several times."""
    if stage is not None:
        name, runs = f"{pipeline.name}/{stage.name}", list(pipeline.runs(stage.name).values())
    else:
        name, runs = pipeline.name, pipeline.stage_runs()
        before = poll_pipeline(pipeline.run, index, listener, drive=False)
        if before.stages and all(one.over for one in before.stages):
            return f"{name} is already over: {before.as_run().state}"
    pipeline.ask_to_cancel(pipeline.cancelled(stage.name) if stage is not None else None)
    words = [cancel(run, index, listener) for run in runs]
    return "\n".join([*(text for text in words if "cancelled job" in text), f"{name}: CANCELLED"])
