"""What a job will do before it is submitted: layout, batch, memory, walltime and cost."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.findings import Finding, errors
from hpc_launch.estimate.gpu import KnownGpu
from hpc_launch.estimate.step_time import StepTime, Walltime, calibrated, step_time
from hpc_launch.layouts.groups import RankGroups, rank_groups
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.performance.measured_pace import MeasuredPace
from hpc_launch.plan.check_limits import limit_row
from hpc_launch.plan.job_estimate import JobEstimate
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.job_training import JobTraining, batch_known, job_layout, target_step
from hpc_launch.prepare.prepare import LAYOUT_CODES, CheckedJob
from hpc_launch.prepare.scaled_pace import ScaledPace, scaled_pace
from hpc_launch.schedulers.scheduler import Balance


class JobPlan(Struct, frozen=True, kw_only=True):
    """The plan of a job. Times are seconds; None is unknown."""

    name: str
    site: str
    size: JobSize
    nodes: int
    layout: ParallelLayout
    batch_known: bool
    """Whether the job gives its batch; otherwise the program chooses it."""
    node_sizes: tuple[int, ...]
    divides: bool
    """Whether the layout is valid; otherwise nothing is estimated."""
    groups: tuple[RankGroups, ...]
    model: ModelConfig | None
    estimate: JobEstimate | None
    """None if the model is unknown or the layout is not valid."""
    step: StepTime | None
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

    @property
    def gpus(self) -> int:
        """GPUs that the job holds."""
        return self.size.gpus_per_node * self.nodes

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
    step = None
    if estimate is not None and isinstance(estimate.training, JobTraining) and isinstance(estimate.gpu, KnownGpu):
        shared = layout.world_size != size.gpus_per_node * job.max_nodes  # a GPU runs several processes, or none
        step = None if shared else step_time(estimate.model, estimate.training.setup, estimate.gpu.gpu)
    scaled = scaled_pace(checked, pace) if pace is not None else None
    if step is not None and isinstance(scaled, ScaledPace):
        step = calibrated(step, scaled.step_s)
    row = limit_row(size, job.held_nodes)
    return JobPlan(
        name=job.name,
        site=checked.loaded.resolved.site.name,
        size=size,
        nodes=job.held_nodes,
        layout=layout,
        batch_known=batch_known(job),
        node_sizes=tuple(node_sizes),
        divides=divides,
        groups=rank_groups(layout, node_sizes) if divides else (),
        model=checked.model,
        estimate=estimate,
        step=step,
        walltime=_walltime(checked, size, step, pace, scaled),
        limit_s=row.time if row is not None else None,
        pace=pace,
        scaled=scaled,
        balance=balance,
        slurm=checked.loaded.resolved.site.scheduler.type == "slurm",
        findings=tuple(checked.findings),
    )


def _walltime(
    checked: CheckedJob,
    size: JobSize,
    step: StepTime | None,
    pace: MeasuredPace | None,
    scaled: ScaledPace | str | None,
) -> Walltime | None:
    """None if the pace or the last step is unknown. The run's last step counts only for the same training."""
    job = checked.loaded.resolved.job
    measured = isinstance(scaled, ScaledPace) and scaled.measured
    steps = target_step(job, job_layout(job, size)) or (pace.total if pace is not None and measured else None)
    step_s = step.total if step is not None and scaled is None else None
    if isinstance(scaled, ScaledPace):
        step_s = scaled.step_s
    if steps is None or step_s is None or step_s <= 0:
        return None
    return Walltime(
        steps=steps,
        step_s=step_s,
        start_s=(pace.start_s if pace is not None else None) or 0.0,
        limit_s=size.time_s,
        lead_s=job.checkpoint.signal_before or 0.0,
        gpus=size.gpus_per_node * job.held_nodes,
    )
