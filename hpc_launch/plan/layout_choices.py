"""What `plan --compare` may change of a job: what its strategy can be told, and what can be estimated."""

from __future__ import annotations

from hpc_launch.estimate.compare_layouts import EVERYTHING, Choices
from hpc_launch.estimate.host_memory import host_memory
from hpc_launch.estimate.training_setup import Sharding, TrainingSetup
from hpc_launch.job.job import JobSpec
from hpc_launch.job.strategy import FullySharded
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.plan.job_size import JobSize

_MIB = 2**20


def layout_choices(job: JobSpec, size: JobSize, model: ModelConfig, setup: TrainingSetup) -> Choices:
    """Megatron's `parallel:`, ZeRO's stage and offloading, or FSDP's sharding; always micro batch and recomputation.

    Model parallelism is in the hands of the program, unless it reads `parallel:`. FSDP's offloading stays as it is:
    no published run measures its optimizer on the host. SHARD_GRAD_OP is left out: its memory is not modelled.
    """
    strategy = job.strategy
    if strategy.name == "megatron":
        return EVERYTHING
    if strategy.zero_stage is not None:
        return Choices(
            model_parallel=False,
            shardings=None if strategy.file is None else (setup.sharding,),
            offload=_offload(job, size, model),
            recompute=("none", "full"),
        )
    return Choices(
        model_parallel=job.parallel is not None,
        shardings=_shardings(job, setup),
        recompute=("none", "selective", "full") if strategy.reader is None else ("none", "full"),
    )


def _shardings(job: JobSpec, setup: TrainingSetup) -> tuple[Sharding, ...]:
    """FSDP 2 takes groups for HSDP from the program. The Trainer's arguments decide whether it uses FSDP at all."""
    strategy = job.strategy
    if strategy.file is not None:
        return (setup.sharding,)
    plain: tuple[Sharding, ...] = ("none",) if strategy.reader != "trainer" and strategy.fsdp == FullySharded() else ()
    if strategy.fsdp.version == 1:
        return (*plain, "fsdp1", "hsdp")
    return (*plain, "fsdp2")


def _offload(job: JobSpec, size: JobSize, model: ModelConfig) -> tuple[tuple[bool, bool], ...] | None:
    """Offloading to the host's memory, where that is known to suffice. NVMe stays as it is."""
    strategy = job.strategy
    if strategy.file is not None or "nvme" in {strategy.offload_optimizer, strategy.offload_param}:
        return None
    has = size.memory or size.node_class.memory or 0
    fitting = [weights for weights in (False, True) if host_memory(model, job.max_nodes, weights=weights) <= has * _MIB]
    return ((False, False), *((True, weights) for weights in fitting))
