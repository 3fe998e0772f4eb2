"""Prepare a pipeline: check the job of each stage, and create its folder.

Submit a run of a pipeline's stage that is due, once: whichever drivers try, and wherever one of them is killed.

The run's folder appears complete, by a rename, and only one process puts it there. Its first attempt is then claimed
like any other (submitting/submit_attempt.py); what a killed driver left is submitted by the next one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from msgspec import Struct, structs

from hpc_launch.base.errors import Refused, UsageError, UserError
from hpc_launch.base.files import make_folder, refuse_replaceable, write_atomic
from hpc_launch.base.findings import Finding, FindingCode, errors
from hpc_launch.base.json_records import write_record
from hpc_launch.job.job_file import split_stage
from hpc_launch.job.pipeline_file import PipelineFile, is_sweep, made_up, pipeline_faults, read_pipeline, stage_document
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.attempts import first_attempt, prepare, with_sentinel
from hpc_launch.prepare.find_secrets import notify_secrets
from hpc_launch.prepare.prepare import PreparedJob, detect_site, prepare_job
from hpc_launch.prepare.prepare_sweep import prepare_sweep
from hpc_launch.prepare.submit_sweep import SweepProgress, create_sweep, submit_points
from hpc_launch.runs.groups.group_folder import PipelineFolder, PipelineRecord, StageRecord, SweepFolder
from hpc_launch.runs.groups.job_arrays import cancel_sweep
from hpc_launch.runs.groups.pipeline_status import StageRefusal
from hpc_launch.runs.groups.stage_inputs import DueRun, UnknownValue, stage_values
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.code_snapshot import take_snapshot
from hpc_launch.runs.submitting.run_store import checkpoint, create_run, new_folder, refusing, write_info
from hpc_launch.runs.submitting.submit_attempt import submit_next
from hpc_launch.schedulers.scheduler import Scheduler, scheduler_for
from hpc_launch.sites import this_machine
from hpc_launch.sites.load_layers import read_sources

_VARIABLE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
_OF_STAGE = "jobs."


class PreparedPipeline(Struct, frozen=True):
    """A pipeline whose stages passed every check."""

    file: PipelineFile
    stages: tuple[StageRecord, ...]
    jobs: dict[str, PreparedJob]
    """The job of each stage; of a sweep, that of its first point."""
    points: dict[str, int]
    """How many points the sweeps have."""
    warnings: tuple[Finding, ...]

    @property
    def first(self) -> PreparedJob:
        """The job of the first stage."""
        return next(iter(self.jobs.values()))


def prepare_pipeline(
    job_file: Path, *, site: str | None = None, sets: Sequence[str] = (), anywhere: bool = False
) -> PreparedPipeline:
    """Prepare all stages of a pipeline, with values made up for those that stages pass on. Raises Refused.

    `anywhere`: accept a site that this machine does not belong to.
    """
    job_file = split_stage(job_file)[0]
    file, findings = read_pipeline(job_file)
    if file is None:
        raise Refused(findings)
    findings = pipeline_faults(file)
    findings += _wrong_sets(file, sets)
    if findings:
        raise Refused(findings)
    jobs: dict[str, PreparedJob] = {}
    points: dict[str, int] = {}
    found: dict[tuple[str, str, str], Finding] = {}
    refused = False
    for name in file.stages:
        try:
            document = stage_document(file, name, made_up(file.references(name)))
            own = sets_of(sets, name)
            sources = read_sources(job_file, site=site, sets=own, detect=detect_site, document=document)
            if is_sweep(file, name):
                sweep = prepare_sweep(job_file, sets=own, sources=sources, anywhere=anywhere)
                jobs[name], points[name] = sweep.first, len(sweep.points)
                more: Sequence[Finding] = sweep.warnings
            else:
                jobs[name] = prepare_job(job_file, sets=own, sources=sources, anywhere=anywhere)
                more = jobs[name].warnings
        except Refused as error:
            refused, more = True, error.findings
        for one in more:
            of_stage = structs.replace(one, message=f"stage {name}: {one.message}")
            found.setdefault((one.code, str(one.place), one.message), of_stage)
    if not refused:
        for one in _not_possible(file, jobs):
            refused = True
            found[one.code, str(one.place), one.message] = one
    if refused:
        raise Refused(list(found.values()))
    return PreparedPipeline(file, _records(file), jobs, points, tuple(found.values()))


def create_pipeline(prepared: PreparedPipeline, sets: Sequence[str], *, index: Index | None = None) -> PipelineFolder:
    """Write the pipeline's folder with the record of its stages. Raises Refused; nothing is submitted yet."""
    attempts = {name: first_attempt(job, sets_of(sets, name)) for name, job in prepared.jobs.items()}
    first = replace(next(iter(attempts.values())), name=prepared.file.name)
    texts = (prepared.file.document.text, first.site_yaml)
    secret = {name for job in prepared.jobs.values() for name in job.loaded.resolved.job.secrets}
    secret |= {name for job in prepared.jobs.values() for name in notify_secrets(job.plan.notify)}
    profile = prepared.first.loaded.resolved.site
    used = {*_VARIABLE.findall("\n".join(texts)), *profile.account.variables} - secret
    fillable = this_machine.names(os.environ)
    record = PipelineRecord(
        stages=prepared.stages,
        sets=tuple(sets),
        job_folder=prepared.first.loaded.resolved.job_folder,
        environment={name: os.environ[name] for name in sorted(used) if f"env.{name}" in fillable},
    )
    created = time.time()
    with refusing(first.runs_folder):
        make_folder(first.runs_folder)
        refuse_replaceable(first.runs_folder)
        run = new_folder(first, created)
        write_atomic(run.job_yaml, prepared.file.document.text)
        write_atomic(run.site_yaml, first.site_yaml)
        run.journal.mkdir(mode=FOLDER_MODE)
        take_snapshot(run, next((one.plan.code for one in attempts.values() if one.plan.code is not None), None))
        write_record(run.pipeline_info, record)
        write_info(run, first, created)
    if index is not None:
        index.add(run)
    return PipelineFolder(run)


def sets_of(sets: Sequence[str], stage: str) -> tuple[str, ...]:
    """The `--set` options of a stage: those for all, and its own, `jobs.STAGE.KEY=VALUE`."""
    head = f"{_OF_STAGE}{stage}."
    own = [text.removeprefix(head) for text in sets if text.startswith(head)]
    return (*(text for text in sets if not text.startswith(_OF_STAGE)), *own)


def _wrong_sets(file: PipelineFile, sets: Sequence[str]) -> list[Finding]:
    faults = []
    for text in sets:
        key = text.partition("=")[0]
        stage = key.removeprefix(_OF_STAGE).partition(".")[0] if key.startswith(_OF_STAGE) else None
        if stage is not None and stage not in file.stages:
            message, hint = f"`--set {text}` names no stage", f"the stages: {', '.join(file.stages)}"
            faults.append(Finding(FindingCode.INVALID_SET_OPTION, message, None, hint))
        elif key.partition(".")[0] in ("sweep", "jobs", "name") and stage is None:
            message, hint = f"`--set {text}` would change every stage", f"name a stage: --set jobs.STAGE.{text}"
            faults.append(Finding(FindingCode.INVALID_SET_OPTION, message, None, hint))
    return faults


def _not_possible(file: PipelineFile, jobs: dict[str, PreparedJob]) -> list[Finding]:
    """HL218 for what depends on the jobs of the stages."""
    faults = []
    first = next(iter(jobs.values())).loaded.resolved
    if first.site.scheduler.type == "ssh":
        message = f"site {first.site.name} has no queue for the stages of a pipeline"
        hint = "use a site with Slurm, or `--site local`; or submit the stages one by one: FILE/STAGE"
        faults.append(Finding(FindingCode.INVALID_PIPELINE, message, first.place("jobs"), hint))
    needed = {keys.on.checkpoint: f"`on` of stage `{name}`" for name, keys in file.stages.items() if keys.on}
    for name in file.stages:
        for value in file.references(name):
            stage, _, key = value.partition(".")
            if not key.endswith("folder"):
                needed.setdefault(stage, f"`${{{value}}}` in stage `{name}`")
    for stage, what in needed.items():
        if jobs[stage].plan.continuation.checkpoint is None:
            place = file.document.key_places.get(("jobs", stage))
            message = f"{what} needs checkpoints, but stage `{stage}` does not say where they are"
            hint = "set `checkpoint: {dir: …}` in it"
            faults.append(Finding(FindingCode.INVALID_PIPELINE, message, place, hint))
    return faults


def _records(file: PipelineFile) -> tuple[StageRecord, ...]:
    return tuple(
        StageRecord(
            name=name,
            after=keys.conditions,
            on=keys.on.checkpoint if keys.on is not None else None,
            every=keys.on.every if keys.on is not None else 1,
            each=keys.each,
            sweep=is_sweep(file, name),
            values=tuple(file.references(name)),
        )
        for name, keys in file.stages.items()
    )


STEPS = ("stage folder",)
"""The steps before those of submit_attempt.py and job_arrays.py, by their names in run_store.py."""

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


def _of_cluster(plan: LaunchPlan, scheduler: Scheduler) -> Scheduler:
    return scheduler if plan.cluster is None else scheduler_for(plan.submitted_to, plan.cluster)


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
    file, findings = read_pipeline(pipeline.run.job_yaml)
    if file is None or stage.name not in file.stages:
        raise Refused(findings)
    document = stage_document(file, stage.name, stage_values(pipeline, due, found))
    site = str(pipeline.run.site_yaml)
    sources = read_sources(pipeline.run.job_yaml, site=site, sets=sets, document=document)
    if stage.sweep:
        points = prepare_sweep(pipeline.run.job_yaml, sets=sets, job_folder=record.job_folder, sources=sources)
        sweep = create_sweep(points, sets, at=run)
        checkpoint("stage folder")
        _refuse_cancelled(pipeline, stage.name)
        return submit_points(sweep, _of_cluster(points.first.plan, scheduler), prepared=points, index=index)
    ready = prepare_job(pipeline.run.job_yaml, sets=sets, job_folder=record.job_folder, sources=sources)
    prepared = prepare(ready, sets, exclude=())
    if any(one.after.get(stage.name, "ok") != "ok" for one in record.stages):
        prepared = with_sentinel(prepared, ready.plan)
    if not run.exists:
        create_run(prepared, at=run)
    checkpoint("stage folder")
    _refuse_cancelled(pipeline, stage.name)
    scheduler = _of_cluster(ready.plan, scheduler)
    return SweepProgress((submit_next(run, prepared, scheduler, index=index, number=due.attempt)[2],))


def _refuse_cancelled(pipeline: PipelineFolder, stage: str) -> None:
    if is_cancelled(pipeline, stage):
        raise UsageError(f"{pipeline.name}/{stage} was cancelled")
