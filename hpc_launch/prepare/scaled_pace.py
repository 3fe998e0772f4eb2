"""The pace of an earlier run for a job that differs from it, with a range, and the layouts that the job could have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, UsageError, UserError
from hpc_launch.estimate.compare_layouts import ComparedLayout, Comparison, compare_layouts, recommended
from hpc_launch.estimate.gpu import Gpu, KnownGpu, UnknownGpu, gpu_of_node_class
from hpc_launch.estimate.step_time import calibrated, step_time
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.job import JobSpec
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.performance.measured_pace import MeasuredPace
from hpc_launch.plan.job_training import JobTraining, UnknownTraining, batch_known, job_training
from hpc_launch.plan.layout_choices import layout_choices
from hpc_launch.prepare.prepare import CheckedJob, check_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of

MORE_REPLICAS = 1.4
"""If only the number of replicas differs, 9 of 10 published pairs of runs lie within this factor
(tests/estimate/test_step_time.py)."""
OTHER_LAYOUT = 2.3
"""The same for runs that divide the model otherwise."""


class KnownTraining(NamedTuple):
    """What a job trains, and on what."""

    model: ModelConfig
    setup: TrainingSetup
    gpu: Gpu


class ScaledPace(Struct, frozen=True, kw_only=True):
    """Seconds per step for another job than the one that was measured."""

    step_s: float
    low_s: float
    """With `high_s`, where the time probably lies. Both are `step_s` if the run trained the same in the same layout."""
    high_s: float
    estimated_s: float | None = None
    """The estimate for the measured run; None if it is not known."""

    @property
    def measured(self) -> bool:
        """Whether nothing was scaled."""
        return self.low_s == self.high_s


def scaled_pace(checked: CheckedJob, pace: MeasuredPace) -> ScaledPace | str:
    """The pace for this job, or why the run says nothing about it."""
    world = checked.size.processes(checked.loaded.resolved.job.max_nodes) if checked.size is not None else None
    same = ScaledPace(step_s=pace.step_s, low_s=pace.step_s, high_s=pace.step_s)
    job, run = known_training(checked), _of_run(pace)
    if isinstance(job, str) or isinstance(run, str):
        if pace.processes in {None, world}:
            return same
        what = f"the job: {job}" if isinstance(job, str) else f"{pace.run}: {run}"
        return f"its {pace.processes} processes cannot be compared with {world}, because of {what}"
    differences = list(_differences(job, run))
    if differences:
        return f"it trained with another {', '.join(differences)}"
    before = step_time(run.model, run.setup, run.gpu).total
    if job.setup == run.setup:
        return replace(same, estimated_s=before)
    ratio = step_time(job.model, job.setup, job.gpu).total / before
    off = MORE_REPLICAS if _divides_alike(job.setup, run.setup) else OTHER_LAYOUT
    scaled = pace.step_s * ratio
    return ScaledPace(step_s=scaled, low_s=scaled / off, high_s=scaled * off, estimated_s=before)


def known_training(checked: CheckedJob) -> KnownTraining | str:
    """What a job trains, or what is missing for an estimate of its time."""
    size, model, resolved = checked.size, checked.model, checked.loaded.resolved
    if size is None or model is None:
        return "its model is unknown (set `model:`)"
    training = job_training(resolved.job, size, model, None)
    if not isinstance(training, JobTraining):
        return training.reason
    setup = training.setup
    if not batch_known(resolved.job):
        return "its batch is unknown (set `micro_batch`)"
    if setup.layout.world_size % setup.layout.model_parallel:
        return "its layout is not valid"
    gpu = gpu_of_node_class(size.queue.node_class, size.node_class, resolved.site.fabric)
    if not isinstance(gpu, KnownGpu):
        return gpu.reason
    if setup.layout.world_size != size.gpus_per_node * resolved.job.max_nodes:
        return "it does not run one process per GPU"
    return KnownTraining(model, setup, replace(gpu.gpu, per_node=size.gpus_per_node))


def _of_run(pace: MeasuredPace) -> KnownTraining | str:
    if pace.folder is None:
        return "its job file is not known"
    run = RunFolder(pace.folder)
    plan = plan_of(run.attempt(pace.attempt)) or PlanRecord()
    try:
        checked = check_job(
            run.job_yaml, site=str(run.site_yaml), sets=plan.sets, job_folder=plan.job_folder, anywhere=True
        )
    except (UserError, OSError):
        return "its job file cannot be read"
    found = known_training(checked)
    if isinstance(found, KnownTraining) and found.setup.layout.world_size != pace.processes:
        return "it ran on fewer nodes than its job file allows"
    return found


def _differences(job: KnownTraining, run: KnownTraining) -> Iterator[str]:
    """Where the constant factor between estimate and reality differs, so that the ratio says nothing."""
    models = [replace(one.model, name="", sequence=None) for one in (job, run)]
    if models[0] != models[1]:
        yield "model"
    if job.setup.sequence != run.setup.sequence:
        yield "sequence length"
    if job.gpu.name != run.gpu.name:
        yield "kind of GPU"
    for name in ("framework", "precision", "optimizer"):
        if getattr(job.setup, name) != getattr(run.setup, name):
            yield name


def _divides_alike(job: TrainingSetup, run: TrainingSetup) -> bool:
    def parts(setup: TrainingSetup) -> tuple[object, ...]:
        parallel = setup.layout.parallel
        sizes = (parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.vpp, parallel.micro_batch)
        return (*sizes, setup.sharding, setup.recompute, setup.offload_optimizer, setup.offload_parameters)

    return parts(job) == parts(run)


class JobLayouts(Struct, frozen=True):
    """Layouts, the fastest first, and the recommended one. Times are seconds only if `pace` is known."""

    job: JobSpec
    found: Comparison
    recommended: ComparedLayout | None
    now: TrainingSetup
    pace: MeasuredPace | None


def job_layouts(checked: CheckedJob, pace: MeasuredPace | None) -> JobLayouts:
    """Compare the layouts. Raises Refused for a job that names no valid model.

    Raises UsageError if its GPU is unknown, or if the measured run cannot be compared with it.
    """
    size, model = checked.size, checked.model
    if size is None or (model is None and checked.findings):
        raise Refused(checked.findings)
    if model is None:
        raise UsageError("the model of the job is unknown", "set `model:` in the job file")
    job, site = checked.loaded.resolved.job, checked.loaded.resolved.site
    training = job_training(job, size, model, None)
    if isinstance(training, UnknownTraining):
        raise UsageError(f"the layouts cannot be compared: {training.reason}", training.hint)
    known = gpu_of_node_class(size.queue.node_class, size.node_class, site.fabric)
    if isinstance(known, UnknownGpu):
        raise UsageError(f"the layouts cannot be compared: {known.reason}", known.hint)
    if not size.gpus_per_node:
        raise UsageError("the layouts cannot be compared: the job requests no GPUs", "set `gpus_per_node`")
    gpu = replace(known.gpu, per_node=size.gpus_per_node)
    found = compare_layouts(model, training.setup, gpu, layout_choices(job, size, model, training.setup))
    if pace is None:
        return JobLayouts(job, found, recommended(found), training.setup, None)
    scaled = scaled_pace(checked, pace)
    if isinstance(scaled, str):
        raise UsageError(f"{pace.run} cannot calibrate the layouts: {scaled}", "leave out `--from`")
    before = scaled.estimated_s or step_time(model, training.setup, gpu).total
    layouts = tuple(replace(one, step=calibrated(one.step, pace.step_s, of=before)) for one in found.layouts)
    found = replace(found, layouts=layouts)
    return JobLayouts(job, found, recommended(found), training.setup, pace)
