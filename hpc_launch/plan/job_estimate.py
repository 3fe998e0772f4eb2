"""Whether a job's model fits its GPUs: the estimate of memory, and the findings that follow from it."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.estimate.gpu import KnownGpu, UnknownGpu, gpu_of_node_class
from hpc_launch.estimate.memory import MemoryEstimate, memory
from hpc_launch.estimate.memory_reductions import reductions
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.plan.job_size import JobSize, job_size
from hpc_launch.plan.job_training import JobTraining, UnknownTraining, job_training
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.user_strategy_config import UserStrategyConfig
from hpc_launch.sites.resolved import Resolved

GIB = 2**30


class JobEstimate(Struct, frozen=True):
    """The memory of a job's model on each GPU, with what it follows from. Bytes; None is unknown."""

    size: JobSize
    model: ModelConfig
    training: JobTraining | UnknownTraining
    memory: MemoryEstimate | None
    gpu: KnownGpu | UnknownGpu
    available: int | None
    """Of the GPU for each process."""


def job_estimate(resolved: Resolved, model: ModelConfig, user_config: UserStrategyConfig | None) -> JobEstimate | None:
    """The estimate for a job that has a plan; None if its processes cannot be divided as `parallel:` says."""
    size = job_size(PlanDraft(resolved, []))
    if size is None:
        return None
    training = job_training(resolved.job, size, model, user_config)
    if isinstance(training, JobTraining) and training.setup.layout.world_size % training.setup.layout.model_parallel:
        return None
    gpu = gpu_of_node_class(size.queue.node_class, size.node_class, resolved.site.fabric)
    return JobEstimate(
        size=size,
        model=model,
        training=training,
        memory=memory(model, training.setup) if isinstance(training, JobTraining) else None,
        gpu=gpu,
        available=_available(size, gpu),
    )


def _available(size: JobSize, gpu: KnownGpu | UnknownGpu) -> int | None:
    nominal = size.node_class.gpu_memory
    whole = gpu.gpu.memory if isinstance(gpu, KnownGpu) else nominal * 2**20 if nominal is not None else None
    if whole is None or not size.gpus_per_node:
        return None
    return whole // max(1, -(-size.processes_per_node // size.gpus_per_node))


def memory_findings(resolved: Resolved, estimate: JobEstimate) -> list[Finding]:
    """HL685 if the states alone exceed the GPU, HL686 if the estimate of everything does."""
    needs, available = estimate.memory, estimate.available
    if needs is None or available is None or isinstance(estimate.training, UnknownTraining):
        return []
    if needs.states <= available and needs.total <= available:
        return []
    setup = estimate.training.setup
    key = "parallel" if setup.framework == "megatron" else "strategy"
    name = f" of {estimate.gpu.gpu.name}" if isinstance(estimate.gpu, KnownGpu) else ""
    better = [(one.saved, one) for one in reductions(estimate.model, setup)]
    if needs.states > available:
        better = [(needs.states - memory(estimate.model, one.setup).states, one) for _, one in better]
        better = sorted((pair for pair in better if pair[0] > needs.states // 100), key=lambda pair: -pair[0])
    hint = "; ".join(f"{one.change}: {gib(saved)} GiB less" for saved, one in better[:3]) or "use more GPUs"
    if needs.states > available:
        message = (
            f"parameters ({gib(needs.parameters)} GiB), gradients ({gib(needs.gradients)} GiB) and optimizer states "
            f"({gib(needs.optimizer)} GiB) need {gib(needs.states)} GiB per GPU, more than the {gib(available)} "
            f"GiB{name}"
        )
        return [Finding(FindingCode.STATES_TOO_LARGE, message, resolved.place(key), hint)]
    hint += "".join(f"; assumed: {text}" for text in estimate.training.assumed)
    message = (
        f"the training needs about {gib(needs.total)} GiB per GPU ({gib(needs.low)} to {gib(needs.high)}), more than "
        f"the {gib(available)} GiB{name}"
    )
    return [Finding(FindingCode.MEMORY_MAY_NOT_FIT, message, resolved.place(key), hint, "warning")]


def gib(size: float) -> str:
    """Bytes in GiB as text."""
    return f"{size / GIB:.1f}" if size < 100 * GIB else f"{size / GIB:.0f}"
