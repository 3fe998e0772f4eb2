"""Rules that combine `strategy:`, `parallel:` and the rest of a job, checked before any configuration is written."""

from __future__ import annotations

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.strategy import Strategy
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.strategy_result import strategy_keys

_BATCH = frozenset({"micro_batch", "global_batch", "gradient_accumulation"})
_ZERO = frozenset({"gradient_clipping", "offload_optimizer", "offload_param", "nvme_path", "buckets", "overlap"})
_SIZES = frozenset({"tp", "pp", "cp"})
"""The sizes that strategies other than Megatron use: how many processes share one copy of the model."""


def check_combinations(filler: ValueFiller) -> None:
    """Add a finding for each key that contradicts another or that nothing reads."""
    strategy = filler.resolved.job.strategy
    asked = strategy_keys(filler)
    for key in sorted(asked - _read_by(strategy)):
        message = f"the strategy `{strategy.name}` does not use `{key}`"
        filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, ("strategy", key), _instead(key, strategy))
    if "file" in asked:
        for key in sorted(asked & (_BATCH | _ZERO | {"fsdp"})):
            message, hint = f"`file` and `{key}` both define the configuration", "set it in the file, or remove `file`"
            filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, ("strategy", key), hint)
    if strategy.name == "fsdp" and strategy.reader is None and asked & {"fsdp", "file"}:
        message = "the reader of this configuration is not known"
        path = ("strategy", "file" if "file" in asked else "fsdp")
        filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, message, path, "add `for: trainer` or `for: accelerate`")
    _check_reader(filler, strategy)
    _check_switch(filler, strategy)
    _check_parallel(filler, strategy)
    _check_precision(filler, strategy)
    _check_elastic(filler, strategy)


def _read_by(strategy: Strategy) -> frozenset[str]:
    if strategy.zero_stage is not None:
        return _BATCH | _ZERO | {"for", "file"}
    if strategy.name == "fsdp":
        return _BATCH | {"for", "file", "fsdp"}
    if strategy.name == "ddp":
        return _BATCH | {"for"}
    return frozenset() if strategy.name == "megatron" else _BATCH


def _instead(key: str, strategy: Strategy) -> str:
    if key in _BATCH:
        return "set it in `parallel:`"
    if key in _ZERO:
        return "use `name: zero1`, `zero2` or `zero3`, or remove it"
    if key == "fsdp":
        return "use `name: fsdp`, or remove it"
    return (
        "remove it: no file is read" if strategy.name != "megatron" else "remove it: Megatron reads flags, not a file"
    )


def _check_reader(filler: ValueFiller, strategy: Strategy) -> None:
    reader, path = strategy.reader, ("strategy", "for")
    if strategy.name == "fsdp" and reader == "deepspeed":
        hint = "use `name: zero3`, which shards the same state"
        filler.fault(FindingCode.CONFLICTING_STRATEGY_KEYS, "DeepSpeed does not support FSDP", path, hint)
    elif strategy.name == "ddp" and reader in {"deepspeed", "trainer"}:
        hint = "remove it" if reader == "trainer" else "use `name: zero0` for DeepSpeed without ZeRO"
        filler.fault(
            FindingCode.CONFLICTING_STRATEGY_KEYS, f"`{reader}` reads no configuration for plain DDP", path, hint
        )


def _check_switch(filler: ValueFiller, strategy: Strategy) -> None:
    """The Trainer reads its FSDP configuration only if `fsdp` is on (training_args.py, _process_fsdp_args)."""
    if strategy.name != "fsdp" or strategy.reader != "trainer":
        return
    args = filler.resolved.job.args
    given = [key for key, value in args.items() if value] if isinstance(args, dict) else map(str, args)
    if "fsdp" not in {word.lstrip("-").partition("=")[0] for word in given}:
        message = "the Trainer reads its FSDP configuration only if its argument `fsdp` is on"
        filler.fault(
            FindingCode.CONFIG_NOT_PASSED, message, ("strategy", "for"), "add `fsdp: true` to the arguments", "warning"
        )


def _check_parallel(filler: ValueFiller, strategy: Strategy) -> None:
    held = filler.resolved.merged.data.get("parallel")
    if strategy.name == "megatron":
        if filler.resolved.job.parallel is None:
            message = "`megatron` needs the parallel sizes of the model"
            hint = "add `parallel:`, for example `parallel: {tp: 2, pp: 1}`"
            filler.fault(FindingCode.LAYOUT_MISSING, message, ("strategy", "name"), hint)
        return
    given = {key for key, value in held.items() if value is not None} if isinstance(held, dict) else set()
    for key in sorted(given - _SIZES):
        message = f"the strategy `{strategy.name}` does not use `{key}`"
        hint = "set it in `strategy:`" if key in _BATCH else "use `strategy: megatron`, or remove it"
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
