"""Plan `strategy:` and `parallel:` for the processes of the job: a file, variables, flags, and named sizes."""

from __future__ import annotations

from typing import Literal

from hpc_launch.base.findings import FindingCode, Place
from hpc_launch.job.document import Origin, rule
from hpc_launch.job.launcher import Parallel, Strategy, ZeroOptions
from hpc_launch.job.shell_text import Text
from hpc_launch.layouts.parallel_layout import Batch, ParallelLayout, settle
from hpc_launch.layouts.parallel_rules import check_connections, needs_one_connection
from hpc_launch.model.megatron_options import BATCH_ARGUMENTS, arguments
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.plan.launch_plan import StrategyPlan, StrategyResult, Variable
from hpc_launch.plan.megatron_args import check_layout, megatron_flags
from hpc_launch.plan.plan_draft import CONFIG, JobSize, ValueFiller
from hpc_launch.plan.strategies import fsdp_file
from hpc_launch.plan.strategy_files import (
    UserStrategyConfig,
    check_user_config,
    entries,
    origin_of,
    sharded,
    user_config_entries,
    zero,
)

_BATCH_KEYS = frozenset({"micro_batch", "global_batch", "gradient_accumulation"})
_ZERO = frozenset(ZeroOptions.__struct_fields__) - _BATCH_KEYS
_SIZES = frozenset({"tp", "pp", "cp"})
"""The sizes that strategies other than Megatron use: how many processes share one copy of the model."""


def check_combinations(filler: ValueFiller) -> None:
    """Add a finding for each key that contradicts another or that nothing reads."""
    strategy = filler.resolved.job.strategy
    asked = filler.given("strategy") - {"name"}
    for key in sorted(asked - _read_by(strategy)):
        message = f"the strategy `{strategy.name}` does not use `{key}`"
        hint = "set it in `parallel:`" if key in _BATCH_KEYS else "remove it, or name the strategy that it belongs to"
        filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, ("strategy", key), hint)
    if "file" in asked:
        for key in sorted(asked & (_BATCH_KEYS | _ZERO | {"fsdp"})):
            message, hint = f"`file` and `{key}` both define the configuration", "set it in the file, or remove `file`"
            filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, ("strategy", key), hint)
    if strategy.name == "fsdp" and strategy.reader is None and asked & {"fsdp", "file"}:
        message = "the reader of this configuration is not known"
        path = ("strategy", "file" if "file" in asked else "fsdp")
        filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, path, "add `for: trainer` or `for: accelerate`")
    readers = {"fsdp": {"trainer", "accelerate"}, "ddp": {"accelerate"}}.get(strategy.name)
    if strategy.reader is not None and readers is not None and strategy.reader not in readers:
        message = f"`{strategy.reader}` reads no configuration for `{strategy.name}`"
        hint = "remove it; with DeepSpeed, use zero0 to zero3"
        filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, ("strategy", "for"), hint)
    _check_switch(filler, strategy)
    _check_parallel(filler, strategy)
    _check_precision(filler, strategy)
    _check_elastic(filler, strategy)


def _read_by(strategy: Strategy) -> frozenset[str]:
    if strategy.zero_stage is not None:
        return _BATCH_KEYS | _ZERO | {"for", "file"}
    if strategy.name == "fsdp":
        return _BATCH_KEYS | {"for", "file", "fsdp"}
    if strategy.name == "ddp":
        return _BATCH_KEYS | {"for"}
    return frozenset() if strategy.name == "megatron" else _BATCH_KEYS


def _check_switch(filler: ValueFiller, strategy: Strategy) -> None:
    """The Trainer reads its FSDP configuration only if `fsdp` is on (training_args.py, _process_fsdp_args)."""
    if strategy.name != "fsdp" or strategy.reader != "trainer":
        return
    args = filler.resolved.job.args
    given = [key for key, value in args.items() if value] if isinstance(args, dict) else map(str, args)
    if "fsdp" not in {word.lstrip("-").partition("=")[0] for word in given}:
        message = "the Trainer reads its FSDP configuration only if its argument `fsdp` is on"
        hint = "add `fsdp: true` to the arguments"
        filler.fault(FindingCode.CONFIG_NOT_PASSED, message, ("strategy", "for"), hint, "warning")


def _check_parallel(filler: ValueFiller, strategy: Strategy) -> None:
    if strategy.name == "megatron":
        if filler.resolved.job.parallel is None:
            message = "`megatron` needs the parallel sizes of the model"
            hint = "add `parallel:`, for example `parallel: {tp: 2, pp: 1}`"
            filler.fault(FindingCode.LAYOUT_MISSING, message, ("strategy", "name"), hint)
        return
    for key in sorted(filler.given("parallel") - _SIZES):
        message = f"the strategy `{strategy.name}` does not use `{key}`"
        hint = "set it in `strategy:`" if key in _BATCH_KEYS else "use `strategy: megatron`, or remove it"
        filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, ("parallel", key), hint)


def _check_precision(filler: ValueFiller, strategy: Strategy) -> None:
    if filler.resolved.job.precision != "fp8" or strategy.name in {"ddp", "none"}:
        return
    if strategy.name == "fsdp" and strategy.reader != "trainer":
        return  # Accelerate supports fp8, and a custom training loop may
    message = f"the configuration of `{strategy.name}` has no setting for fp8"
    hint = "use `precision: bf16`, and turn fp8 on with the training's own arguments"
    filler.fault(FindingCode.PRECISION_NOT_SUPPORTED, message, ("precision",), hint)


def _check_elastic(filler: ValueFiller, strategy: Strategy) -> None:
    job = filler.resolved.job
    if not job.elastic:
        return
    if strategy.zero_stage or strategy.name == "megatron":
        message = f"`{strategy.name}` saves one shard per process and cannot resume with fewer processes"
        hint = "set a fixed number of nodes, or use another strategy"
        filler.fault(FindingCode.STRATEGY_NOT_ELASTIC, message, ("nodes",), hint)
    elif strategy.global_batch is not None:
        message = "the global batch cannot stay constant when the number of nodes changes"
        hint = "set `micro_batch` instead, or a fixed number of nodes"
        filler.fault(FindingCode.STRATEGY_NOT_ELASTIC, message, ("strategy", "global_batch"), hint)


_KEYS = {name: key for key, names in BATCH_ARGUMENTS.items() for name in names}


def is_batch_argument(name: str) -> bool:
    """Whether the value of this argument is compared with the batch of `strategy:`."""
    return name.lstrip("-").replace("-", "_") in _KEYS


def check_batch_arguments(filler: ValueFiller, batch: Batch) -> None:
    """HL610 for a number that contradicts the batch. The Trainer and DeepSpeed would stop; others would not notice."""
    sizes = {"micro_batch": batch.micro, "gradient_accumulation": batch.accumulation, "global_batch": batch.train}
    for name, value, at in arguments(filler.resolved.job.args):
        key = _KEYS.get(name.lstrip("-").replace("-", "_"))
        text, size = str(value), sizes[key] if key is not None else None
        if size is not None and text.isascii() and text.isdigit() and text.lstrip("0") != str(size):
            message = f"`{name}` is {text}, but `strategy:` makes it {size}"
            hint = f"write `${{strategy.{key}}}` here, or remove one of the two"
            filler.fault(FindingCode.INCONSISTENT_BATCH, message, ("args", at), hint)


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
        # For an elastic run, on each number of nodes that it may run on.
        worlds = [size.processes(count) for count in range(job.max_nodes, job.min_nodes - 1, -1)]
        layouts = [ParallelLayout(job.parallel, world) for world in worlds]
        check_layout(filler, layouts, size, model)
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
        values = fsdp_file.for_fsdp(data)
        places = {name: Origin("file", file.place(*fsdp_file.key_of(name))) for name in values}
        return None, tuple(Variable(name, (value,), places[name]) for name, value in values.items())
    made = sharded(filler, filler.resolved.job.max_nodes, world_size)
    if made is None:
        return None, ()
    request, text = made
    if asked.reader == "trainer":
        variables: tuple[Variable, ...] = ()
        if request.version == 1:
            origin = origin_of(filler, "sharding_strategy")
            variables = (Variable("FSDP_SHARDING_STRATEGY", (request.sharding_strategy,), origin),)
        return _file(filler, (text,), None), variables
    values = fsdp_file.for_fsdp(fsdp_file.accelerate_data(request))
    origins = {name: origin_of(filler, ".".join(fsdp_file.key_of(name))) for name in values}
    origins["ACCELERATE_USE_FSDP"] = _origin(filler)
    return None, tuple(Variable(name, (value,), origins[name]) for name, value in values.items())


def _for_accelerate(filler: ValueFiller, user_config: UserStrategyConfig | None) -> tuple[Variable, ...]:
    """The environment of an `Accelerator()` for DDP or DeepSpeed."""
    job = filler.resolved.job
    if job.strategy.reader != "accelerate":
        return ()
    word = fsdp_file.precision(job.precision)
    origin = filler.resolved.origin("precision") if job.precision else rule("`precision` is not set")
    if user_config is not None and user_config.format is not None:
        word, origin = user_config.format, Origin("file", user_config.located.place(user_config.format))
    mixed = Variable("ACCELERATE_MIXED_PRECISION", (word,), origin)
    if job.strategy.zero_stage is None:
        return (mixed,)
    origin = _origin(filler)
    use = Variable("ACCELERATE_USE_DEEPSPEED", ("true",), origin)
    return use, mixed, Variable("ACCELERATE_DEEPSPEED_CONFIG_FILE", (CONFIG,), origin)


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
    if asked.name == "megatron" or not filler.given("strategy") & {*_BATCH}:
        return None
    uneven = layout.world_size % layout.model_parallel
    replicas = None if job.elastic or uneven else layout.dp
    places = [filler.resolved.place("strategy", key) or Place("strategy") for key in _BATCH]
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
