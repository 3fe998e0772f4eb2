"""What a job will do before it is submitted: layout, batch, memory, walltime and cost.

The pace of an earlier run for a job that differs from it, with a range, and the layouts that the job could have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, UsageError, UserError
from hpc_launch.base.findings import Finding, errors
from hpc_launch.estimate.compare_layouts import ComparedLayout, Comparison, compare_layouts, recommended
from hpc_launch.estimate.gpu import Gpu, Unknown, gpu_of_node_class
from hpc_launch.estimate.step_time import Walltime, step_time
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.job import JobSpec
from hpc_launch.layouts.parallel_layout import ParallelLayout, RankGroups, rank_groups
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.performance.measured_pace import MeasuredPace
from hpc_launch.plan.job_estimate import (
    JobEstimate,
    JobTraining,
    batch_known,
    job_layout,
    job_training,
    layout_choices,
    target_step,
)
from hpc_launch.plan.plan_draft import JobSize
from hpc_launch.plan.plan_rules import limit_row
from hpc_launch.prepare.prepare import LAYOUT_CODES, CheckedJob, check_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.schedulers.scheduler import Balance

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
    job, run = known_training(checked), training_of_run(pace)
    if isinstance(job, str) or isinstance(run, str):
        if pace.processes in {None, world}:
            return same
        what = f"the job: {job}" if isinstance(job, str) else f"{pace.run}: {run}"
        return f"its {pace.processes} processes cannot be compared with {world}, because of {what}"
    differences = list(_differences(job, run))
    if differences:
        return f"it trained with another {', '.join(differences)}"
    before = step_time(run.model, run.setup, run.gpu)
    if job.setup == run.setup:
        return replace(same, estimated_s=before)
    ratio = step_time(job.model, job.setup, job.gpu) / before
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
    if not isinstance(gpu, Gpu):
        return gpu.reason
    if setup.layout.world_size != size.gpus(resolved.job.max_nodes):
        return "it does not run one process per GPU"
    return KnownTraining(model, setup, replace(gpu, per_node=size.gpus_per_node))


def training_of_run(pace: MeasuredPace) -> KnownTraining | str:
    """What a measured run trained, or why that is not known."""
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
    if isinstance(training, Unknown):
        raise UsageError(f"the layouts cannot be compared: {training.reason}", training.hint)
    known = gpu_of_node_class(size.queue.node_class, size.node_class, site.fabric)
    if isinstance(known, Unknown):
        raise UsageError(f"the layouts cannot be compared: {known.reason}", known.hint)
    if not size.gpus_per_node:
        raise UsageError("the layouts cannot be compared: the job requests no GPUs", "set `gpus_per_node`")
    gpu = replace(known, per_node=size.gpus_per_node)
    found = compare_layouts(model, training.setup, gpu, layout_choices(job, training.setup))
    if pace is None:
        return JobLayouts(job, found, recommended(found), training.setup, None)
    scaled = scaled_pace(checked, pace)
    if isinstance(scaled, str):
        raise UsageError(f"{pace.run} cannot calibrate the layouts: {scaled}", "leave out `--from`")
    before = scaled.estimated_s or step_time(model, training.setup, gpu)
    layouts = tuple(replace(one, step_s=one.step_s * pace.step_s / before) for one in found.layouts)
    found = replace(found, layouts=layouts)
    return JobLayouts(job, found, recommended(found), training.setup, pace)


class JobPlan(Struct, frozen=True, kw_only=True):
    """The plan of a job. Times are seconds; None is unknown."""

    name: str
    site: str
    size: JobSize
    nodes: int
    layout: ParallelLayout
    batch_known: bool
    """Whether the job gives its batch; otherwise the program chooses it."""
    divides: bool
    """Whether the layout is valid; otherwise nothing is estimated."""
    groups: tuple[RankGroups, ...]
    model: ModelConfig | None
    estimate: JobEstimate | None
    """None if the model is unknown or the layout is not valid."""
    step_s: float | None
    """The estimate; None if it is not known. A measured run is closer."""
    walltime: Walltime | None
    """Of the whole training; None if its pace or its last step is unknown."""
    limit_s: int | None
    """The queue's time limit for a job of this size."""
    pace: MeasuredPace | None
    scaled: ScaledPace | str | None
    """The pace for this job, or why it is not known; None without a measured run."""
    balance: Balance | None
    slurm: bool
    """Whether Slurm may report a balance."""
    findings: tuple[Finding, ...]
    detected: str | None = None
    """How the site was detected, unless it was specified."""

    @property
    def gpus(self) -> int:
        """GPUs that the job holds."""
        return self.size.gpus(self.nodes)

    @property
    def job_gpu_hours(self) -> float | None:
        """GPU-hours of one job that uses its whole time."""
        return None if self.size.time_s is None else self.gpus * self.size.time_s / 3600


def job_plan(
    checked: CheckedJob, *, pace: MeasuredPace | None = None, balance: Balance | None = None
) -> JobPlan | None:
    """The plan; None if the job's size is unknown, which a finding reports."""
    job, size, estimate = checked.loaded.resolved.job, checked.size, checked.estimate
    if size is None:
        return None
    layout = job_layout(job, size)
    node_sizes = size.slots or (size.processes_per_node,) * job.max_nodes
    divides = not any(found.code in LAYOUT_CODES for found in errors(checked.findings))
    step_s = None
    if estimate is not None and isinstance(estimate.training, JobTraining) and isinstance(estimate.gpu, Gpu):
        shared = layout.world_size != size.gpus(job.max_nodes)  # a GPU runs several processes, or none
        step_s = None if shared else step_time(estimate.model, estimate.training.setup, estimate.gpu)
    scaled = scaled_pace(checked, pace) if pace is not None else None
    row = limit_row(size, job.held_nodes)
    return JobPlan(
        name=job.name,
        site=checked.loaded.resolved.site.name,
        size=size,
        nodes=job.held_nodes,
        layout=layout,
        batch_known=batch_known(job),
        divides=divides,
        groups=rank_groups(layout, node_sizes) if divides else (),
        model=checked.model,
        estimate=estimate,
        step_s=step_s,
        walltime=_walltime(checked, size, step_s, pace, scaled),
        limit_s=row.time if row is not None else None,
        pace=pace,
        scaled=scaled,
        balance=balance,
        slurm=checked.loaded.resolved.site.scheduler.type == "slurm",
        findings=tuple(checked.findings),
        detected=checked.loaded.detected,
    )


def _walltime(
    checked: CheckedJob,
    size: JobSize,
    estimated_s: float | None,
    pace: MeasuredPace | None,
    scaled: ScaledPace | str | None,
) -> Walltime | None:
    """None if the pace or the last step is unknown. The run's last step counts only for the same training."""
    job = checked.loaded.resolved.job
    measured = isinstance(scaled, ScaledPace) and scaled.measured
    steps = target_step(job, job_layout(job, size)) or (pace.total if pace is not None and measured else None)
    step_s = scaled.step_s if isinstance(scaled, ScaledPace) else None if scaled is not None else estimated_s
    if steps is None or step_s is None or step_s <= 0:
        return None
    return Walltime(
        steps=steps,
        step_s=step_s,
        start_s=(pace.start_s if pace is not None else None) or 0.0,
        limit_s=size.time_s,
        lead_s=job.checkpoint.signal_before or 0.0,
        gpus=size.gpus(job.held_nodes),
    )
