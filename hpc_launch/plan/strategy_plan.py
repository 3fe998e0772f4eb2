"""Plan `strategy:` and `parallel:` for the processes of the job: a file, variables, flags, and named sizes."""

from __future__ import annotations

from typing import Literal

from hpc_launch.base.findings import Place
from hpc_launch.job.origin import Origin, rule
from hpc_launch.job.parallel import Parallel
from hpc_launch.job.shell_text import Text
from hpc_launch.layouts.batch import Batch, BatchPlaces, settle
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.layouts.parallel_rules import check_connections, needs_one_connection
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.plan.batch_arguments import check_batch_arguments
from hpc_launch.plan.fill_values import CONFIG, ValueFiller
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.megatron_args import check_layout, megatron_flags
from hpc_launch.plan.plan_parts import StrategyPlan, Variable
from hpc_launch.plan.strategies import accelerate_env
from hpc_launch.plan.strategies.fsdp_config import accelerate_data, make
from hpc_launch.plan.strategy_files import entries, origin_of, sharded, zero
from hpc_launch.plan.strategy_result import StrategyResult, strategy_keys
from hpc_launch.plan.strategy_rules import check_combinations
from hpc_launch.plan.user_strategy_config import UserStrategyConfig, check_user_config, user_config_entries

_BATCH = ("global_batch", "micro_batch", "gradient_accumulation")
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def strategy_result(
    filler: ValueFiller, size: JobSize, user_config: UserStrategyConfig | None, model: ModelConfig | None
) -> StrategyResult:
    """The strategy for this number of processes, with a finding for each conflict."""
    job = filler.resolved.job
    world_size = size.processes(job.max_nodes)
    check_combinations(filler)
    layout = ParallelLayout(job.parallel or Parallel(), world_size)
    if job.parallel is not None:
        check_layout(filler, _sizes(filler, size), size.gpus_per_node, model)
    variables = _connections(filler, size, layout)
    batch = _batch(filler, layout)
    if batch is not None:
        check_batch_arguments(filler, batch)
        variables += _accumulation(filler, batch)
    names = _names(filler, layout, batch)
    if world_size % layout.model_parallel or (job.strategy.file is not None and user_config is None):
        return StrategyResult(None, (), names)  # reported by a finding; nothing more can be derived
    if user_config is not None:
        check_user_config(filler, user_config, world_size)
    if job.strategy.name == "megatron":
        flags = megatron_flags(filler, layout)
        return StrategyResult(StrategyPlan(None, (), _origin(filler), flags=flags), variables, names)
    if job.strategy.zero_stage is not None:
        text = (user_config.script_text,) if user_config is not None else zero(filler, world_size)
        return StrategyResult(_file(filler, text, user_config), variables + _for_accelerate(filler, user_config), names)
    if job.strategy.name == "fsdp" and job.strategy.reader in {"trainer", "accelerate"}:
        plan, more = _sharded(filler, user_config, world_size)
        return StrategyResult(plan, variables + more, names)
    return StrategyResult(None, variables + _for_accelerate(filler, None), names)


def _sizes(filler: ValueFiller, size: JobSize) -> list[ParallelLayout]:
    """The layout on all nodes; for an elastic run, on each number of nodes that it may run on."""
    job = filler.resolved.job
    nodes = range(job.max_nodes, job.min_nodes - 1, -1)
    return [ParallelLayout(job.parallel or Parallel(), size.processes(count)) for count in nodes]


def _origin(filler: ValueFiller) -> Origin:
    asked = filler.resolved.job.strategy
    return filler.resolved.origin("strategy", "name" if asked.file is None else "file")


def _file(filler: ValueFiller, text: Text | None, user_config: UserStrategyConfig | None) -> StrategyPlan | None:
    if text is None:
        return None
    values = user_config_entries(user_config) if user_config is not None else entries(filler, text)
    return StrategyPlan(filler.resolved.job.strategy.config, text, _origin(filler), values)


def _sharded(
    filler: ValueFiller, user_config: UserStrategyConfig | None, world_size: int
) -> tuple[StrategyPlan | None, tuple[Variable, ...]]:
    """The FSDP file for the Trainer, or the environment for Accelerate."""
    asked = filler.resolved.job.strategy
    if user_config is not None and asked.reader == "trainer":
        return _file(filler, (user_config.script_text,), user_config), ()
    if user_config is not None:
        file = user_config.located
        data = file.data if isinstance(file.data.get("fsdp_config"), dict) else {"fsdp_config": {}}
        values = accelerate_env.for_fsdp(data)
        places = {key: Origin("file", file.place(*accelerate_env.key_of(key))) for key in values}
        return None, _environment(values, places)
    request = sharded(filler, filler.resolved.job.max_nodes, world_size)
    if request is None:
        return None, ()
    if asked.reader == "trainer":
        variables: tuple[Variable, ...] = ()
        if request.version == 1:
            origin = origin_of(filler, "sharding_strategy")
            variables = (Variable("FSDP_SHARDING_STRATEGY", (request.sharding_strategy,), origin),)
        return _file(filler, (make(request)[0] or "",), None), variables
    values = accelerate_env.for_fsdp(accelerate_data(request))
    return None, _environment(values, {key: _of_key(filler, key) for key in values})


def _environment(values: dict[str, str], origins: dict[str, Origin]) -> tuple[Variable, ...]:
    return tuple(Variable(name, (value,), origins[name]) for name, value in values.items())


def _of_key(filler: ValueFiller, variable: str) -> Origin:
    if variable == "ACCELERATE_USE_FSDP":
        return _origin(filler)
    return origin_of(filler, ".".join(accelerate_env.key_of(variable)))


def _for_accelerate(filler: ValueFiller, user_config: UserStrategyConfig | None) -> tuple[Variable, ...]:
    """The environment of an `Accelerator()` for DDP or DeepSpeed."""
    job = filler.resolved.job
    if job.strategy.reader != "accelerate":
        return ()
    word, origin = accelerate_env.precision(job.precision), _precision(filler)
    if user_config is not None and user_config.format is not None:
        word, origin = user_config.format, Origin("file", user_config.located.place(user_config.format))
    mixed = Variable("ACCELERATE_MIXED_PRECISION", (word,), origin)
    if job.strategy.zero_stage is None:
        return (mixed,)
    origin = _origin(filler)
    use = Variable("ACCELERATE_USE_DEEPSPEED", ("true",), origin)
    return use, mixed, Variable("ACCELERATE_DEEPSPEED_CONFIG_FILE", (CONFIG,), origin)


def _precision(filler: ValueFiller) -> Origin:
    return filler.resolved.origin("precision") if filler.resolved.job.precision else rule("`precision` is not set")


def _connections(filler: ValueFiller, size: JobSize, layout: ParallelLayout) -> tuple[Variable, ...]:
    """CUDA_DEVICE_MAX_CONNECTIONS if Megatron needs it and the job does not set it."""
    job = filler.resolved.job
    nvidia = size.gpus_per_node > 0 and size.node_class.gpu_vendor in (None, "nvidia")
    if _CONNECTIONS in job.env and job.strategy.name in {"megatron", "fsdp"}:
        place = filler.resolved.place("env", _CONNECTIONS)
        given = {_CONNECTIONS: str(job.env[_CONNECTIONS])}
        kind: Literal["megatron", "fsdp"] = "megatron" if job.strategy.name == "megatron" else "fsdp"
        filler.findings.extend(check_connections(layout, given, place, strategy=kind) if nvidia else [])
    elif job.strategy.name == "megatron" and nvidia and needs_one_connection(layout):
        return (Variable(_CONNECTIONS, ("1",), rule("required by Megatron with TP or CP before Blackwell")),)
    return ()


def _names(filler: ValueFiller, layout: ParallelLayout, batch: Batch | None) -> dict[str, str]:
    job, parallel = filler.resolved.job, layout.parallel
    names = {}
    if job.parallel is not None:
        sizes = {"tp": parallel.tp, "pp": parallel.pp, "cp": parallel.cp, "ep": parallel.ep, "dp": layout.dp}
        names = {f"parallel.{key}": str(size) for key, size in sizes.items()}
    if job.strategy.name == "megatron":
        numbers = (layout.global_batch, parallel.micro_batch, layout.microbatches)
    elif batch is not None:
        numbers = (batch.train or 1, batch.micro or 1, batch.accumulation or 1)
    else:
        return names
    return names | {f"strategy.{key}": str(number) for key, number in zip(_BATCH, numbers, strict=True)}


def _batch(filler: ValueFiller, layout: ParallelLayout) -> Batch | None:
    """The batch of `strategy:`, as far as it is known here; None if the job sets none, or sets it for Megatron."""
    job = filler.resolved.job
    asked = job.strategy
    if asked.name == "megatron" or not strategy_keys(filler) & {*_BATCH}:
        return None
    uneven = layout.world_size % layout.model_parallel
    replicas = None if job.elastic or uneven else layout.dp
    places = BatchPlaces(*(filler.resolved.place("strategy", key) or Place("strategy") for key in _BATCH))
    batch, found = settle(Batch(asked.global_batch, asked.micro_batch, asked.gradient_accumulation), replicas, places)
    if asked.zero_stage is None:  # otherwise reported when the file is generated
        filler.findings.extend(found)
    return batch or Batch(None, None, None)


def _accumulation(filler: ValueFiller, batch: Batch) -> tuple[Variable, ...]:
    """The accumulation of an `Accelerator()` without DeepSpeed's file, if the job determines it.

    It overrides what the training passes to `Accelerator()` (accelerate 1.15, accelerator.py).
    """
    asked = filler.resolved.job.strategy
    determined = asked.gradient_accumulation or (asked.micro_batch and asked.global_batch)
    if asked.reader != "accelerate" or asked.zero_stage is not None or not determined or batch.accumulation is None:
        return ()
    key = "gradient_accumulation" if asked.gradient_accumulation else "global_batch"
    origin = filler.resolved.origin("strategy", key)
    return (Variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", (str(batch.accumulation),), origin),)
