"""The changes to a job file that make its training what a row of `plan --compare` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hpc_launch.base.errors import UsageError
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.job import JobSpec
from hpc_launch.layouts.write_layout import Edit, layout_edit
from hpc_launch.plan.job_training import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH


class LayoutEdits(NamedTuple):
    """Changes, and what is left to the user."""

    edits: tuple[Edit, ...]
    notes: tuple[str, ...]


def layout_edits(job: JobSpec, data: Mapping[str, Any], now: TrainingSetup, chosen: TrainingSetup) -> LayoutEdits:
    """What to write. `data` is the job file's own content, without the layers below.

    Raises UsageError if the values are in a file of the user's own or in a list of arguments.
    """
    recomputation = _recomputation(job, data.get("args"), now, chosen)
    arguments = dict(recomputation)
    if job.strategy.name == "megatron":
        edits = [layout_edit(chosen.layout.parallel)]
    else:
        edits = _strategy_edits(job, data, now, chosen)
        if _batch(now) != _batch(chosen):
            arguments |= _batch_arguments(data.get("args"), chosen)
    if arguments:
        edits.append(Edit(("args",), arguments))
    return LayoutEdits(tuple(edits), tuple(_notes(job, data, now, chosen, told=bool(recomputation))))


def _strategy_edits(job: JobSpec, data: Mapping[str, Any], now: TrainingSetup, chosen: TrainingSetup) -> list[Edit]:
    if job.strategy.file is not None:
        message = f"the configuration of the strategy is a file of your own: {job.strategy.file}"
        raise UsageError(message, "change it there")
    values, inner = _strategy(job, now, chosen), _fsdp(job, now, chosen)
    if _batch(now) != _batch(chosen):
        values |= _batch_values(job, chosen)
    held = data.get("strategy")
    edits = []
    if inner and isinstance(held, dict) and isinstance(held.get("fsdp"), dict):
        edits.append(Edit(("strategy", "fsdp"), inner))
    elif inner:
        values["fsdp"] = inner
    if values:
        named: dict[str, object] = {} if isinstance(held, dict) else {"name": job.strategy.name}
        edits.append(Edit(("strategy",), named | values))
    sizes = {name: getattr(chosen.layout.parallel, name) for name in ("tp", "pp", "cp")}
    if job.parallel is not None and sizes != {name: getattr(job.parallel, name) for name in sizes}:
        edits.append(Edit(("parallel",), sizes))
    return edits


def _strategy(job: JobSpec, now: TrainingSetup, chosen: TrainingSetup) -> dict[str, object]:
    values: dict[str, object] = {}
    strategy = job.strategy
    if strategy.zero_stage is None:
        name = "ddp" if chosen.sharding == "none" else "fsdp"
    else:
        name = "zero0" if chosen.sharding == "none" else chosen.sharding
    if name != strategy.name and now.sharding != chosen.sharding:
        values["name"] = name
    if strategy.zero_stage is not None:
        for key in ("offload_optimizer", "offload_parameters"):
            if getattr(now, key) != getattr(chosen, key):
                field = key if key == "offload_optimizer" else "offload_param"
                values[field] = "cpu" if getattr(chosen, key) else "none"
    return values


def _fsdp(job: JobSpec, now: TrainingSetup, chosen: TrainingSetup) -> dict[str, object]:
    """The keys below `strategy.fsdp`, which only the Trainer and Accelerate read."""
    if job.strategy.reader is None or chosen.sharding not in {"fsdp1", "fsdp2", "hsdp"}:
        return {}
    values: dict[str, object] = {}
    if now.sharding != chosen.sharding and job.strategy.name == "fsdp":
        values["sharding_strategy"] = "HYBRID_SHARD" if chosen.sharding == "hsdp" else "FULL_SHARD"
    if _fsdp_recomputes(job, chosen) and now.recompute != chosen.recompute:
        values["activation_checkpointing"] = chosen.recompute == "full"
    return values


def _fsdp_recomputes(job: JobSpec, chosen: TrainingSetup) -> bool:
    """Whether `strategy.fsdp` decides about recomputation."""
    return job.strategy.reader is not None and job.strategy.zero_stage is None and chosen.sharding != "none"


def _batch(setup: TrainingSetup) -> tuple[int, int]:
    return setup.layout.parallel.micro_batch, setup.layout.microbatches


def _batch_values(job: JobSpec, chosen: TrainingSetup) -> dict[str, object]:
    micro, steps = _batch(chosen)
    given = job.strategy.micro_batch, job.strategy.gradient_accumulation, job.strategy.global_batch
    values: dict[str, object] = {"micro_batch": micro}
    if given[1] is not None or given[2] is None:
        values["gradient_accumulation"] = steps
    return values


def _batch_arguments(args: object, chosen: TrainingSetup) -> dict[str, object]:
    """Those of the job's arguments that name a size as a number."""
    micro, steps = _batch(chosen)
    sizes = dict.fromkeys(MICRO_BATCH, micro) | dict.fromkeys(ACCUMULATION, steps)
    sizes |= dict.fromkeys(GLOBAL_BATCH, chosen.layout.global_batch)
    if isinstance(args, list):
        words = sorted({_plain(str(word).partition("=")[0]) for word in args} & sizes.keys())
        if words:
            message = f"the batch is in a list of arguments: {', '.join(words)}"
            hint = "write `${strategy.micro_batch}` and the like there, and the sizes in `strategy:`"
            raise UsageError(message, hint)
        return {}
    if not isinstance(args, dict):
        return {}
    names = {_plain(str(key)): key for key in args}
    literal = [name for name in sizes if name in names and not str(args[names[name]]).startswith("$")]
    found: dict[str, object] = {names[name]: sizes[name] for name in literal}
    if "per_device_train_batch_size" in names and ACCUMULATION[0] not in names and steps > 1:
        found[ACCUMULATION[0]] = steps
    return found


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _recomputation(job: JobSpec, args: object, now: TrainingSetup, chosen: TrainingSetup) -> dict[str, object]:
    """The arguments for it of Megatron (training/arguments.py, recompute) and the Trainer; none without a mapping."""
    strategy = job.strategy
    if now.recompute == chosen.recompute or isinstance(args, list):
        return {}
    wanted: dict[str, object] = {}
    if strategy.name == "megatron":
        full = chosen.recompute == "full"
        wanted = {
            "recompute-granularity": None if chosen.recompute == "none" else chosen.recompute,
            "recompute-method": "uniform" if full else None,
            "recompute-num-layers": 1 if full else None,
        }
    elif strategy.reader == "trainer" and strategy.zero_stage is not None:
        wanted = {"gradient_checkpointing": chosen.recompute == "full"}
    names = {_plain(str(key)): str(key) for key in args} if isinstance(args, dict) else {}
    found = {names.get(_plain(key), key): value for key, value in wanted.items()}
    return {key: value for key, value in found.items() if value or key in names.values()}


def _notes(
    job: JobSpec, data: Mapping[str, Any], now: TrainingSetup, chosen: TrainingSetup, *, told: bool
) -> Iterator[str]:
    """What the user must do. `told`: the arguments say how much to recompute."""
    strategy = job.strategy
    if strategy.name != "megatron" and strategy.reader in {None, "accelerate"}:
        if now.sharding != chosen.sharding and strategy.reader is None and strategy.zero_stage is None:
            yield "the training must use the strategy that HPC_LAUNCH_STRATEGY names"
        if _batch(now) != _batch(chosen) and "${strategy." not in str(data.get("args")):
            yield "pass the batch to the training: `${strategy.micro_batch}` and `${strategy.gradient_accumulation}`"
    if now.recompute == chosen.recompute or told or _fsdp_recomputes(job, chosen):
        return
    word = "no" if chosen.recompute == "none" else chosen.recompute
    yield f"it is for {word} recomputation of activations: tell the training"
