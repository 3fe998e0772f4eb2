"""`parallel:` for Megatron: its flags, and the sizes of the model that limit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.job.document import KeyPath
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import UNEVEN_FIELDS, ModelShape, ParallelLayout
from hpc_launch.layouts.parallel_rules import check, check_connections
from hpc_launch.model.megatron_options import SHAPE_OPTIONS, arguments, shape_of_arguments
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.plan.launch_plan import Entry
from hpc_launch.plan.plan_draft import JobSize, ValueFiller
from hpc_launch.plan.strategy_files import EXPLICIT

Precision = Literal["bf16", "fp16", "fp32"]


class MegatronJob(Struct, frozen=True, kw_only=True):
    """Options beyond the layout and the model."""

    world_size: Annotated[int, Meta(ge=1)]
    """Total number of processes."""
    gpus_per_node: Annotated[int | None, Meta(ge=1)] = None
    """GPUs per node, to check that TP stays within one."""
    precision: Precision = "bf16"
    """The precision of the training."""
    format: Literal["lines", "args"] = "lines"
    """One flag per line, or an `args:` block for a job file."""


def make(job: MegatronJob, parallel: Parallel, model: ModelShape) -> tuple[str | None, list[Finding]]:
    """The flags as text; None with findings if the layout is invalid."""
    layout = ParallelLayout(parallel, job.world_size)
    findings = check(layout, model, lambda at: Place(f"--{at.replace('_', '-')}"), gpus_per_node=job.gpus_per_node)
    if errors(findings):
        return None, findings
    findings += check_connections(layout, {}, None)
    rows = [(name, value) for name, _, value in flags(layout, model, job.precision) if _is_set(value)]
    if job.format == "lines":
        return "".join(f"{name}\n" if value is True else f"{name} {value}\n" for name, value in rows), findings
    lines = (f"  {name.removeprefix('--')}: {'true' if value is True else value}\n" for name, value in rows)
    return "args:\n" + "".join(lines), findings


Row = tuple[str, str, int | bool | None]
"""A flag, the key of `parallel:` that it comes from, and its value: None and False leave it out."""


def flags(layout: ParallelLayout, model: ModelShape, precision: Precision = "bf16") -> list[Row]:
    """All flags for the arguments of a Megatron training, with those that are not set."""
    parallel, experts = layout.parallel, model.num_experts is not None
    grouped = model.query_groups is not None and model.query_groups != model.heads
    return [
        ("--tensor-model-parallel-size", "tp", parallel.tp),
        ("--pipeline-model-parallel-size", "pp", parallel.pp),
        ("--context-parallel-size", "cp", parallel.cp),
        ("--num-experts", "", model.num_experts),
        ("--expert-model-parallel-size", "ep", parallel.ep if experts else None),
        ("--expert-tensor-parallel-size", "etp", (parallel.etp or parallel.tp) if experts else None),
        ("--num-virtual-stages-per-pipeline-rank", "vpp", parallel.vpp),
        ("--decoder-first-pipeline-num-layers", "first_stage_layers", parallel.first_stage_layers),
        ("--decoder-last-pipeline-num-layers", "last_stage_layers", parallel.last_stage_layers),
        ("--num-layers", "", model.num_layers),
        ("--hidden-size", "", model.hidden_size),
        ("--num-attention-heads", "", model.heads),
        ("--group-query-attention", "", grouped),
        ("--num-query-groups", "", model.query_groups if grouped else None),
        ("--seq-length", "", model.seq_length),
        ("--max-position-embeddings", "", model.seq_length),
        ("--micro-batch-size", "micro_batch", parallel.micro_batch),
        ("--global-batch-size", "global_batch", layout.global_batch),
        (f"--{precision}", "", precision != "fp32"),
        ("--account-for-embedding-in-pipeline-split", "count_embedding", parallel.count_embedding),
        ("--account-for-loss-in-pipeline-split", "count_loss", parallel.count_loss),
        ("--sequence-parallel", "sequence_parallel", parallel.sequence_parallel),
        ("--use-distributed-optimizer", "distributed_optimizer", parallel.distributed_optimizer),
        ("--overlap-grad-reduce", "overlap", parallel.overlap and layout.dp > 1),
        # Megatron refuses one without the other.
        ("--overlap-param-gather", "overlap", parallel.overlap and layout.dp > 1 and parallel.distributed_optimizer),
        ("--no-overlap-p2p-communication", "vpp", bool(parallel.vpp) and not parallel.overlap),
    ]


def _is_set(value: int | bool | None) -> bool:
    return value is not None and value is not False


_MODEL_KEYS = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "heads": "heads",
    "query_groups": "query_groups",
    "num_experts": "experts",
    "seq_length": "sequence",
}
"""The key of `model:` behind each size."""

_OWN_STAGES = ("--pipeline-model-parallel-layout", "--hybrid-layer-pattern")
"""Arguments that name the layers of each stage, which Megatron checks itself."""

_OPTIONS = {f"--{name.replace('_', '-')}": field for name, field in SHAPE_OPTIONS.items()}


def check_layout(
    filler: ValueFiller, layouts: Sequence[ParallelLayout], size: JobSize, model: ModelConfig | None
) -> None:
    """Add the findings of the first layout that breaks a rule.

    The sizes are those of the model, where it is known, and those among the arguments that Megatron gets.
    """
    megatron = filler.resolved.job.strategy.name == "megatron"
    shape = asdict(model.shape if model is not None else ModelShape())
    paths: dict[str, KeyPath] = {field: ("model", key) for field, key in _MODEL_KEYS.items()} if model else {}
    if megatron:
        given = _arguments(filler)
        sizes = asdict(shape_of_arguments(filler.resolved.job.args))
        argument_paths = {field: given[name] for name, field in _OPTIONS.items() if name in given}
        _check_agreement(filler, shape, sizes, argument_paths)
        shape |= {field: size for field, size in sizes.items() if size is not None}
        paths |= argument_paths

    def place(field: str) -> Place | None:
        return filler.resolved.place(*paths.get(field, ("parallel", field)))

    even = megatron and not any(name in _arguments(filler) for name in _OWN_STAGES)
    segment = filler.resolved.job.sbatch.get("segment")
    nvlink = min(size.node_class.nvlink_nodes, segment if isinstance(segment, int) else 1)
    for layout in layouts:
        found = check(
            layout,
            ModelShape(**shape),
            place,
            gpus_per_node=size.gpus_per_node or None,
            even=even,
            nvlink_nodes=max(nvlink, 1),
        )
        # Elsewhere the batch is the strategy's, and whether it fills the stages cannot be known.
        filler.findings.extend(finding for finding in found if megatron or finding.code != FindingCode.IDLE_STAGES)
        if errors(found):
            return


def _check_agreement(
    filler: ValueFiller, model: dict[str, int | None], sizes: dict[str, int | None], paths: dict[str, KeyPath]
) -> None:
    """Report the arguments that differ from `model:`: the training uses the arguments, and the estimates the model."""
    asked = filler.resolved.job.model
    if asked is None:
        return
    for field, size in sizes.items():
        expected = model[field] if field != "seq_length" else asked.sequence
        if size is not None and expected is not None and size != expected:
            message = f"Megatron's argument is {size}, but `model` has {expected} for `{_MODEL_KEYS[field]}`"
            filler.fault(FindingCode.MODEL_CONTRADICTS_ARGUMENTS, message, paths[field], "make the two agree")


def megatron_flags(filler: ValueFiller, layout: ParallelLayout) -> tuple[Entry, ...]:
    """The flags that precede the job's own arguments; those must not repeat any of them."""
    given, job = _arguments(filler), filler.resolved.job
    asked: Precision = job.precision if job.precision in ("bf16", "fp16") else "fp32"
    shape = ModelShape(num_experts=shape_of_arguments(job.args).num_experts)
    result = []
    for name, key, value in flags(layout, shape, asked):
        if not _is_set(value):
            if key in UNEVEN_FIELDS and name in given:
                message, hint = f"`{name}` is not known to the checks and estimates", f"set `parallel.{key}` instead"
                filler.fault(FindingCode.DUPLICATE_MEGATRON_FLAG, message, given[name], hint)
            continue
        if name == "--num-experts":
            continue  # the job's own argument, by which it is known
        path: KeyPath = ("parallel", key) if key else ("precision",)
        if name in given:
            written = ".".join(map(str, path))
            message, hint = f"`{name}` is already set by `{written}`", f"remove it here and set `{written}`"
            filler.fault(FindingCode.DUPLICATE_MEGATRON_FLAG, message, given[name], hint)
        origin = filler.resolved.origin(*path) if path in filler.resolved.merged.origins else EXPLICIT
        result.append(Entry(name, None if value is True else str(value), origin))
    return tuple(result)


def _arguments(filler: ValueFiller) -> dict[str, KeyPath]:
    """The path of each option among the job's arguments."""
    return {name: ("args", at) for name, _, at in arguments(filler.resolved.job.args)}
