"""What `plan --compare` may change of a job, and the keys of the job file that say a layout."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from hpc_launch.estimate.compare_layouts import EVERYTHING, Choices
from hpc_launch.estimate.training_setup import Sharding, TrainingSetup
from hpc_launch.job.job import JobSpec
from hpc_launch.job.launcher import Parallel
from hpc_launch.job.strategy import FullySharded


def layout_choices(job: JobSpec, setup: TrainingSetup) -> Choices:
    """Megatron's `parallel:`, ZeRO's stage, or FSDP's sharding; always micro batch and recomputation.

    Model parallelism is in the hands of the program, unless it reads `parallel:`. Offloading stays as it is.
    SHARD_GRAD_OP is left out: its memory is not modelled.
    """
    strategy = job.strategy
    if strategy.name == "megatron":
        return EVERYTHING
    if strategy.zero_stage is not None:
        return Choices(
            model_parallel=False,
            shardings=None if strategy.file is None else (setup.sharding,),
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


def layout_keys(job: JobSpec, setup: TrainingSetup) -> dict[str, dict[str, Any]]:
    """`parallel:` and `strategy:` for a layout: what differs from the defaults. Recomputation is up to the program."""
    parallel, strategy, defaults = setup.layout.parallel, job.strategy, asdict(Parallel())
    if strategy.name == "megatron":
        sizes = {key: value for key, value in asdict(parallel).items() if value != defaults[key] or key in ("tp", "pp")}
        return {"parallel": sizes}
    keys: dict[str, Any] = {"name": setup.sharding if strategy.zero_stage is not None else "fsdp"}
    if setup.sharding == "none":
        keys["name"] = "ddp" if strategy.zero_stage is None else "zero0"
    if strategy.reader is not None:
        keys["for"] = strategy.reader
    keys |= {"micro_batch": parallel.micro_batch, "gradient_accumulation": setup.layout.microbatches}
    if strategy.zero_stage is not None:
        off = {"offload_optimizer": setup.offload_optimizer, "offload_param": setup.offload_parameters}
        keys |= {key: "cpu" for key, used in off.items() if used and getattr(strategy, key) != "nvme"}
    elif keys["name"] == "fsdp" and strategy.reader is not None:
        kind = {"sharding_strategy": "HYBRID_SHARD"} if setup.sharding == "hsdp" else {}
        recomputed = {"activation_checkpointing": True} if setup.recompute == "full" else {}
        keys["fsdp"] = {"version": strategy.fsdp.version, **kind, **recomputed}
    sizes = {key: getattr(parallel, key) for key in ("tp", "pp", "cp")}
    return {"strategy": keys} | ({"parallel": sizes} if job.parallel is not None else {})
