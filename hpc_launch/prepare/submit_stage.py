"""Submit a run of a pipeline's stage that is due, once: whichever drivers try, and wherever one of them is killed.

The run's folder appears complete, by a rename, and only one process puts it there. Its first attempt is then claimed
like any other (submitting/submit_attempt.py); what a killed driver left is submitted by the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from hpc_launch.base.errors import Refused, UsageError, UserError
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import errors
from hpc_launch.base.json_records import write_record
from hpc_launch.job.pipeline_file import read_pipeline, stage_document
from hpc_launch.prepare.attempts import prepare, with_sentinel
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.prepare.prepare_pipeline import sets_of
from hpc_launch.prepare.prepare_sweep import prepare_sweep
from hpc_launch.prepare.submit_sweep import SweepProgress, create_sweep, submit_points
from hpc_launch.runs.groups.cancel_sweep import cancel_sweep
from hpc_launch.runs.groups.pipeline_folder import PipelineFolder, StageInfo
from hpc_launch.runs.groups.pipeline_status import DueRun, StageRefusal, UnknownValue, stage_values
from hpc_launch.runs.groups.sweep_folder import SweepFolder
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.run_store import checkpoint, create_run
from hpc_launch.runs.submitting.submit_attempt import submit_next
from hpc_launch.schedulers.scheduler import Scheduler
from hpc_launch.sites.load_layers import JobSources, read_sources

STEPS = ("stage folder",)
"""The steps before those of submit_attempt.py and arrays.py, by their names in run_store.py."""

PLACE_CODES = frozenset({
    FindingCode.CANNOT_WRITE, FindingCode.INSECURE_SECRETS_FILE, FindingCode.SECRET_NOT_SET,
    FindingCode.TRACKER_KEY_MISSING,
})  # fmt: skip
"""Findings that another driver, in another place, may not have."""


def submit_stage(
    pipeline: PipelineFolder,
    due: DueRun,
    found: Mapping[str, object],
    scheduler: Scheduler,
    *,
    index: Index | None = None,
    inside: bool = False,
) -> SweepProgress | None:
    """Submit what is due. None where another process was first, or where the stage is refused, which is on record.

    `found`: the states of the pipeline's runs by name. `inside`: in a job, which may lack what a login node has, so
    that a refusal is not final. Raises SchedulerError where the scheduler does not answer.
    """
    stage = due.stage
    run = pipeline.stage_run(stage.name, due.key)
    refused = pipeline.refused(stage.name, due.key)
    try:
        with recorded_environment(pipeline):
            progress = _submit(pipeline, due, run, found, scheduler, index)
    except (UnknownValue, Refused) as error:
        findings = errors(error.findings) if isinstance(error, Refused) else []
        reason = "; ".join(one.message for one in findings) if findings else str(error)
        final = not inside and not {one.code for one in findings} & PLACE_CODES
        with suppress(OSError):
            write_record(refused, StageRefusal(reason=reason, final=final))
        return None
    except UsageError:
        return None  # another process was first, or the pipeline was cancelled
    with suppress(OSError):
        refused.unlink()
    if is_cancelled(pipeline, stage.name):  # while it was being submitted
        with suppress(UserError):
            if os.path.exists(run.sweep_info):
                cancel_sweep(SweepFolder(run), scheduler)
            else:
                cancel_run(run, scheduler, undecided=True)
    return progress


def is_cancelled(pipeline: PipelineFolder, stage: str) -> bool:
    """Whether a user asked for the end of the pipeline or of this stage."""
    return os.path.exists(pipeline.cancel) or os.path.exists(pipeline.cancelled(stage))


def stage_sources(pipeline: PipelineFolder, stage: str, values: Mapping[str, str]) -> JobSources:
    """The files of a stage's job, from what the pipeline's folder recorded. Raises Refused."""
    file, findings = read_pipeline(pipeline.run.job_yaml)
    if file is None or stage not in file.stages:
        raise Refused(findings)
    document = stage_document(file, stage, values)
    sets = sets_of(pipeline.record.sets, stage)
    return read_sources(pipeline.run.job_yaml, site=str(pipeline.run.site_yaml), sets=sets, document=document)


@contextmanager
def recorded_environment(pipeline: PipelineFolder) -> Iterator[None]:
    """The variables that the job refers to, as they were where the pipeline was submitted, unless they are set here."""
    missing = {name: text for name, text in pipeline.record.environment.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _submit(  # noqa: PLR0917 - the stages before
    pipeline: PipelineFolder,
    due: DueRun,
    run: RunFolder,
    found: Mapping[str, object],
    scheduler: Scheduler,
    index: Index | None,
) -> SweepProgress:
    stage, record = due.stage, pipeline.record
    sets = sets_of(record.sets, stage.name)
    info = StageInfo(stage=stage.name, key=due.key)
    sources = stage_sources(pipeline, stage.name, stage_values(pipeline, due, found))
    if stage.sweep:
        points = prepare_sweep(pipeline.run.job_yaml, sets=sets, job_folder=record.job_folder, sources=sources)
        sweep = create_sweep(points, sets, at=run, stage=info)
        checkpoint("stage folder")
        _refuse_cancelled(pipeline, stage.name)
        return submit_points(sweep, scheduler, prepared=points, index=index)
    ready = prepare_job(pipeline.run.job_yaml, sets=sets, job_folder=record.job_folder, sources=sources)
    prepared = prepare(ready, sets, exclude=())
    if any(one.after.get(stage.name, "ok") != "ok" for one in record.stages):
        prepared = with_sentinel(prepared, ready.plan)
    if not run.exists:
        create_run(prepared, at=run, stage=info)
    checkpoint("stage folder")
    _refuse_cancelled(pipeline, stage.name)
    return SweepProgress((submit_next(run, prepared, scheduler, index=index, number=due.attempt)[2],))


def _refuse_cancelled(pipeline: PipelineFolder, stage: str) -> None:
    if is_cancelled(pipeline, stage):
        raise UsageError(f"{pipeline.name}/{stage} was cancelled")
