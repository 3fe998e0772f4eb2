"""Whether a job's model fits its GPUs: the estimate of memory, and the findings that follow from it.

How a job trains its model, as far as memory and time depend on it: `strategy:`, `parallel:`, and its arguments.

What `plan --search` may change of it, and the keys of the job file that say a layout.

Arguments count by the names that Megatron and the Transformers Trainer give them; `${…}` and unknown names do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.estimate.compare_layouts import EVERYTHING, Choices
from hpc_launch.estimate.gpu import Gpu, Unknown, gpu_of_node_class
from hpc_launch.estimate.memory import MemoryEstimate, memory, reductions
from hpc_launch.estimate.training_setup import Framework, Optimizer, Recompute, Sharding, TrainingSetup
from hpc_launch.job.job import JobSpec
from hpc_launch.job.launcher import FullySharded, Parallel, Strategy
from hpc_launch.layouts.parallel_layout import Batch, ParallelLayout, settle
from hpc_launch.model.megatron_options import BATCH_ARGUMENTS, arguments
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.plan.strategy_files import UserStrategyConfig
from hpc_launch.sites.resolved import Resolved

_SEQUENCE = ("seq_length", "max_seq_length", "seq_len", "block_size", "max_length")
_STEPS = ("train_iters", "max_steps", "train_steps", "steps", "max_iters", "num_steps")
_SAMPLES = ("train_samples",)
_ADAPTERS = re.compile(r"(?<![a-z])(?<!q_)(?<!kv_)q?lora")
"""Not `q_lora_rank` and `kv_lora_rank` of latent attention."""
_OPTIMIZERS: tuple[tuple[str, Optimizer], ...] = (("8bit", "adam8bit"), ("muon", "muon"), ("sgd", "sgd"))
DEFAULT_SEQUENCE = 2048
"""Tokens per sample where the job names none."""


class JobTraining(Struct, frozen=True):
    """The setup, and what had to be assumed."""

    setup: TrainingSetup
    assumed: tuple[str, ...]


def job_layout(job: JobSpec, size: JobSize) -> ParallelLayout:
    """The layout of the job's processes. Batch sizes are those of `parallel:` for Megatron, else of `strategy:`."""
    layout = ParallelLayout(job.parallel or Parallel(), size.processes(job.max_nodes))
    if job.strategy.name == "megatron" or layout.world_size % layout.model_parallel:
        return layout
    given = given_values(job)
    asked = job.strategy
    wanted = Batch(
        asked.global_batch or _number(given, BATCH_ARGUMENTS["global_batch"]),
        asked.micro_batch or _number(given, BATCH_ARGUMENTS["micro_batch"]),
        asked.gradient_accumulation or _number(given, BATCH_ARGUMENTS["gradient_accumulation"]),
    )
    batch, _ = settle(wanted, layout.dp, [Place("")] * 3)
    if batch is None:
        return layout
    sizes = replace(layout.parallel, micro_batch=batch.micro or 1, global_batch=batch.train)
    return ParallelLayout(sizes, layout.world_size)


def job_training(
    job: JobSpec, size: JobSize, model: ModelConfig, user_config: UserStrategyConfig | None
) -> JobTraining | Unknown:
    """The setup of the job's training; `user_config` is the file named by `strategy.file`."""
    strategy, given = job.strategy, given_values(job)
    if strategy.name == "none":
        return Unknown("the job does not name its strategy", "set `strategy:`, such as ddp, fsdp or zero3")
    if any(_ADAPTERS.search(name) for name in given):
        return Unknown("adapters (LoRA) train only a part of the model", "test the memory with a short run")
    layout, assumed = job_layout(job, size), []
    sequence = job.model.sequence if job.model is not None else None
    sequence = sequence or _number(given, _SEQUENCE)
    if sequence is None:
        sequence = model.sequence or DEFAULT_SEQUENCE
        longest = ", the model's longest" if model.sequence else ""
        assumed.append(f"sequences of {sequence} tokens{longest}: set `sequence` in `model:`")
    if not batch_known(job):
        assumed.append("a micro batch of 1: set `micro_batch` in `strategy:`")
    sharding, shard_group = _sharding(job, size)
    offload = _offload(strategy, user_config)
    framework: Framework = "pytorch" if strategy.zero_stage is None else "deepspeed"
    optimizer = str(given.get("optim", given.get("optimizer", ""))).lower()
    setup = TrainingSetup(
        layout=layout,
        sequence=sequence,
        sharding=sharding,
        shard_group=shard_group,
        framework="megatron" if strategy.name == "megatron" else framework,
        precision=_precision(job, given),
        optimizer=next((kind for part, kind in _OPTIMIZERS if part in optimizer), "adam"),
        recompute=_recompute(strategy, given),
        offload_optimizer=offload[0],
        offload_parameters=offload[1],
        bucket_elements=strategy.buckets if strategy.zero_stage and user_config is None else None,
        compiled=bool(given.get("torch_compile")),
        expandable_segments="expandable_segments:True" in str(job.env.get("PYTORCH_CUDA_ALLOC_CONF", "")),
    )
    return JobTraining(setup, tuple(assumed))


def batch_known(job: JobSpec) -> bool:
    """Whether the job gives its batch; otherwise the program chooses it."""
    asked = job.strategy
    names = (*BATCH_ARGUMENTS["micro_batch"], *BATCH_ARGUMENTS["global_batch"])
    in_arguments = _number(given_values(job), names) is not None
    return job.strategy.name == "megatron" or bool(asked.micro_batch or asked.global_batch) or in_arguments


def target_step(job: JobSpec, layout: ParallelLayout) -> int | None:
    """The last step, if the arguments name it."""
    given = given_values(job)
    samples = _number(given, _SAMPLES)
    return _number(given, _STEPS) or (-(-samples // layout.global_batch) if samples else None)


def given_values(job: JobSpec) -> dict[str, Any]:
    """The job's arguments by name, in lower case with underscores."""
    return {name.lstrip("-").replace("-", "_").lower(): value for name, value, _ in arguments(job.args)}


def _number(given: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for name in names:
        text = str(given.get(name, ""))
        if text.isascii() and text.isdigit() and len(text) < 19 and int(text):
            return int(text)
    return None


def _sharding(job: JobSpec, size: JobSize) -> tuple[Sharding, int | None]:
    """What the replicas share, and in groups of how many if not all of them."""
    strategy = job.strategy
    if strategy.name == "megatron":
        shares = job.parallel is not None and job.parallel.distributed_optimizer
        return ("distributed_optimizer" if shares else "none"), None
    if strategy.name == "fsdp":
        kind = strategy.fsdp.sharding_strategy
        if kind == "NO_SHARD":
            return "none", None
        if kind.startswith("HYBRID"):
            return "hsdp", size.processes_per_node
        if kind == "SHARD_GRAD_OP":
            return "zero2", None
        return ("fsdp1" if strategy.fsdp.version == 1 else "fsdp2"), None
    stages: dict[int | None, Sharding] = {1: "zero1", 2: "zero2", 3: "zero3"}
    return stages.get(strategy.zero_stage, "none"), None


def _offload(strategy: Strategy, user_config: UserStrategyConfig | None) -> tuple[bool, bool]:
    """Whether optimizer states and parameters are kept off the GPU."""
    if user_config is None:
        parameters = strategy.offload_param != "none" or (strategy.name == "fsdp" and strategy.fsdp.offload)
        return strategy.offload_optimizer != "none" or (strategy.name == "fsdp" and strategy.fsdp.offload), parameters
    held = user_config.located.data.get("zero_optimization")
    zero: Mapping[str, Any] = held if isinstance(held, dict) else {}
    devices = [zero.get(key) for key in ("offload_optimizer", "offload_param")]
    off = [isinstance(device, dict) and device.get("device", "none") != "none" for device in devices]
    return off[0], off[1]


def _precision(job: JobSpec, given: Mapping[str, Any]) -> Any:
    if job.precision is not None:
        return "fp32" if job.precision == "tf32" else job.precision
    return next((word for word in ("bf16", "fp16") if str(given.get(word, "")).lower() in {"true", "1"}), "fp32")


def _recompute(strategy: Strategy, given: Mapping[str, Any]) -> Recompute:
    granularity = str(given.get("recompute_granularity", ""))
    if granularity == "full" or given.get("gradient_checkpointing") or given.get("activation_checkpointing"):
        return "full"
    if strategy.name == "fsdp" and strategy.fsdp.activation_checkpointing:
        return "full"
    return "selective" if granularity == "selective" or given.get("recompute_activations") else "none"


GIB = 2**30


class JobEstimate(Struct, frozen=True):
    """The memory of a job's model on each GPU, with what it follows from. Bytes; None is unknown."""

    size: JobSize
    model: ModelConfig
    training: JobTraining | Unknown
    memory: MemoryEstimate | None
    gpu: Gpu | Unknown
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


def _available(size: JobSize, gpu: Gpu | Unknown) -> int | None:
    nominal = size.node_class.gpu_memory
    whole = gpu.memory if isinstance(gpu, Gpu) else nominal * 2**20 if nominal is not None else None
    if whole is None or not size.gpus_per_node:
        return None
    return whole // max(1, -(-size.processes_per_node // size.gpus_per_node))


def memory_findings(resolved: Resolved, estimate: JobEstimate) -> list[Finding]:
    """HL685 if the states alone exceed the GPU, HL686 if the estimate of everything does."""
    needs, available = estimate.memory, estimate.available
    if needs is None or available is None or isinstance(estimate.training, Unknown):
        return []
    if needs.states <= available and needs.total <= available:
        return []
    setup = estimate.training.setup
    key = "parallel" if setup.framework == "megatron" else "strategy"
    name = f" of {estimate.gpu.name}" if isinstance(estimate.gpu, Gpu) else ""
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
    return (*plain, "fsdp1", "hsdp") if strategy.fsdp.version == 1 else (*plain, "fsdp2")


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
