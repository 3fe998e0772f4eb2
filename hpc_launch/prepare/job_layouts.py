"""The layouts that a job could have on the same GPUs, compared."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.estimate.compare_layouts import ComparedLayout, Comparison, compare_layouts, recommended
from hpc_launch.estimate.gpu import UnknownGpu, gpu_of_node_class
from hpc_launch.estimate.step_time import calibrated, step_time
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.job import JobSpec
from hpc_launch.performance.measured_pace import MeasuredPace
from hpc_launch.plan.job_training import UnknownTraining, job_training
from hpc_launch.plan.layout_choices import layout_choices
from hpc_launch.prepare.prepare import CheckedJob
from hpc_launch.prepare.scaled_pace import scaled_pace


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
