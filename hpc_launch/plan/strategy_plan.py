"""What `strategy:` and `parallel:` come to on the processes of the job: a file, variables, flags, and sizes by name."""

from __future__ import annotations

from typing import Literal

from hpc_launch.base.findings import Place
from hpc_launch.plan.fill_values import CONFIG, ValueFiller
from hpc_launch.plan.job_size import Shape
from hpc_launch.plan.launch_plan import StrategyPlan, Variable
from hpc_launch.plan.megatron_args import check_layout, megatron_flags
from hpc_launch.plan.strategies import accelerate
from hpc_launch.plan.strategies.batch import Batch, BatchPlaces, settle
from hpc_launch.plan.strategies.fsdp import accelerate_data, make
from hpc_launch.plan.strategies.parallel import Layout
from hpc_launch.plan.strategies.parallel_rules import check_connections, needs_one_connection
from hpc_launch.plan.strategy_files import entries, origin_of, sharded, zero
from hpc_launch.plan.strategy_on_demand import LazyStrategy, asked_for
from hpc_launch.plan.strategy_rules import check_together
from hpc_launch.plan.user_strategy_config import OwnConfig, check_own, own_entries
from hpc_launch.spec.origin import Origin, rule
from hpc_launch.spec.parallel import Parallel
from hpc_launch.spec.shell_text import Text

_BATCH = ("global_batch", "micro_batch", "gradient_accumulation")
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def strategy(words: ValueFiller, form: Shape, own: OwnConfig | None) -> LazyStrategy:
    """The strategy on this many processes; with a finding for all that does not hold together."""
    job = words.resolved.job
    world_size = job.most_nodes * form.processes_per_node
    check_together(words)
    layout = Layout(job.parallel or Parallel(), world_size)
    if job.parallel is not None:
        check_layout(words, _sizes(words, form), form.gpus_per_node)
    variables = _connections(words, form, layout)
    names = _names(words, layout)
    if world_size % layout.model_parallel or (job.strategy.file is not None and own is None):
        return LazyStrategy(None, (), names)  # a finding says so: nothing can be worked out from here
    if own is not None:
        check_own(words, own, world_size)
    if job.strategy.name == "megatron":
        flags = megatron_flags(words, layout)
        return LazyStrategy(StrategyPlan(None, (), _origin(words), flags=flags), variables, names)
    if job.strategy.zero_stage is not None:
        text = (own.script_text,) if own is not None else zero(words, world_size)
        return LazyStrategy(_file(words, text, own), variables + _for_accelerate(words, own), names)
    if job.strategy.name == "fsdp" and job.strategy.reader in {"trainer", "accelerate"}:
        plan, more = _sharded(words, own, world_size)
        return LazyStrategy(plan, variables + more, names)
    return LazyStrategy(None, variables + _for_accelerate(words, None), names)


def _sizes(words: ValueFiller, form: Shape) -> list[Layout]:
    """The layout on all nodes; of an elastic run, on each number of them that it may go on with."""
    job = words.resolved.job
    nodes = range(job.most_nodes, job.fewest_nodes - 1, -1)
    return [Layout(job.parallel or Parallel(), count * form.processes_per_node) for count in nodes]


def _origin(words: ValueFiller) -> Origin:
    asked = words.resolved.job.strategy
    return words.resolved.origin("strategy", "name" if asked.file is None else "file")


def _file(words: ValueFiller, text: Text | None, own: OwnConfig | None) -> StrategyPlan | None:
    if text is None:
        return None
    values = own_entries(own) if own is not None else entries(words, text)
    return StrategyPlan(words.resolved.job.strategy.config, text, _origin(words), values)


def _sharded(
    words: ValueFiller, own: OwnConfig | None, world_size: int
) -> tuple[StrategyPlan | None, tuple[Variable, ...]]:
    """FSDP's file for the Trainer, or its environment for Accelerate."""
    asked = words.resolved.job.strategy
    if own is not None and asked.reader == "trainer":
        return _file(words, (own.script_text,), own), ()
    if own is not None:
        data = own.located.data if isinstance(own.located.data.get("fsdp_config"), dict) else {"fsdp_config": {}}
        places = {key: Origin("file", own.located.place(*accelerate.key_of(key))) for key in accelerate.for_fsdp(data)}
        return None, _environment(accelerate.for_fsdp(data), places)
    request = sharded(words, words.resolved.job.most_nodes, world_size)
    if request is None:
        return None, ()
    if asked.reader == "trainer":
        variables: tuple[Variable, ...] = ()
        if request.version == 1:
            origin = origin_of(words, "sharding_strategy")
            variables = (Variable("FSDP_SHARDING_STRATEGY", (request.sharding_strategy,), origin),)
        return _file(words, (make(request)[0] or "",), None), variables
    values = accelerate.for_fsdp(accelerate_data(request))
    return None, _environment(values, {key: _of_key(words, key) for key in values})


def _environment(values: dict[str, str], origins: dict[str, Origin]) -> tuple[Variable, ...]:
    return tuple(Variable(name, (value,), origins[name]) for name, value in values.items())


def _of_key(words: ValueFiller, variable: str) -> Origin:
    if variable == "ACCELERATE_USE_FSDP":
        return _origin(words)
    return origin_of(words, ".".join(accelerate.key_of(variable)))


def _for_accelerate(words: ValueFiller, own: OwnConfig | None) -> tuple[Variable, ...]:
    """The environment of an `Accelerator()` that does DDP or DeepSpeed."""
    job = words.resolved.job
    if job.strategy.reader != "accelerate":
        return ()
    word, origin = accelerate.precision(job.precision), _precision(words)
    if own is not None and own.format is not None:
        word, origin = own.format, Origin("file", own.located.place(own.format))
    mixed = Variable("ACCELERATE_MIXED_PRECISION", (word,), origin)
    if job.strategy.zero_stage is None:
        return (mixed,)
    origin = _origin(words)
    use = Variable("ACCELERATE_USE_DEEPSPEED", ("true",), origin)
    return use, mixed, Variable("ACCELERATE_DEEPSPEED_CONFIG_FILE", (CONFIG,), origin)


def _precision(words: ValueFiller) -> Origin:
    return words.resolved.origin("precision") if words.resolved.job.precision else rule("no `precision` is asked for")


def _connections(words: ValueFiller, form: Shape, layout: Layout) -> tuple[Variable, ...]:
    """CUDA_DEVICE_MAX_CONNECTIONS where Megatron wants it; what the job itself sets goes before."""
    job = words.resolved.job
    nvidia = form.gpus_per_node > 0 and form.node_class.gpu_vendor in (None, "nvidia")
    if _CONNECTIONS in job.env and job.strategy.name in {"megatron", "fsdp"}:
        place = words.resolved.place("env", _CONNECTIONS)
        given = {_CONNECTIONS: str(job.env[_CONNECTIONS])}
        kind: Literal["megatron", "fsdp"] = "megatron" if job.strategy.name == "megatron" else "fsdp"
        words.findings.extend(check_connections(layout, given, place, strategy=kind) if nvidia else [])
    elif job.strategy.name == "megatron" and nvidia and needs_one_connection(layout):
        return (Variable(_CONNECTIONS, ("1",), rule("Megatron wants it with TP or CP before Blackwell")),)
    return ()


def _names(words: ValueFiller, layout: Layout) -> dict[str, str]:
    job, parallel = words.resolved.job, layout.parallel
    names = {}
    if job.parallel is not None:
        sizes = {"tp": parallel.tp, "pp": parallel.pp, "cp": parallel.cp, "ep": parallel.ep, "dp": layout.dp}
        names = {f"parallel.{key}": str(size) for key, size in sizes.items()}
    if job.strategy.name == "megatron":
        numbers = (layout.global_batch, parallel.micro_batch, layout.microbatches)
    elif asked_for(words) & {*_BATCH}:
        uneven = layout.world_size % layout.model_parallel
        batch = _settled(words, None if job.elastic or uneven else layout.dp)
        numbers = (batch.train or 1, batch.micro or 1, batch.accumulation or 1)
    else:
        return names
    return names | {f"strategy.{key}": str(number) for key, number in zip(_BATCH, numbers, strict=True)}


def _settled(words: ValueFiller, replicas: int | None) -> Batch:
    asked = words.resolved.job.strategy
    places = BatchPlaces(*(words.resolved.place("strategy", key) or Place("strategy") for key in _BATCH))
    batch, found = settle(Batch(asked.global_batch, asked.micro_batch, asked.gradient_accumulation), replicas, places)
    if asked.zero_stage is None:  # else the file's own arithmetic says so
        words.findings.extend(found)
    return batch or Batch(None, None, None)
