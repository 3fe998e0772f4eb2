"""`parallel:` for Megatron: its flags, and the sizes of the model that limit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.document import KeyPath
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import UNEVEN_FIELDS, ModelShape, ParallelLayout
from hpc_launch.layouts.parallel_rules import check, check_connections
from hpc_launch.model.megatron_options import SHAPE_OPTIONS, arguments, shape_of_arguments
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.plan.launch_plan import Entry
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.strategy_files import EXPLICIT


class MegatronJob(Struct, frozen=True, kw_only=True):
    """Options beyond the layout and the model."""

    world_size: Annotated[int, Meta(ge=1)]
    """Total number of processes."""
    gpus_per_node: Annotated[int | None, Meta(ge=1)] = None
    """GPUs per node, to check that TP stays within one."""
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    """The precision of the training."""
    format: Literal["lines", "args"] = "lines"
    """One flag per line, or an `args:` block for a job file."""


def make(job: MegatronJob, parallel: Parallel, model: ModelShape) -> tuple[str | None, list[Finding]]:
    """The flags as text; None with findings if the layout is invalid."""
    layout = ParallelLayout(parallel, job.world_size)
    findings = check(layout, model, _option, gpus_per_node=job.gpus_per_node)
    if errors(findings):
        return None, findings
    findings += check_connections(layout, {}, None)
    lines = flags(layout, model, precision=job.precision)
    if job.format == "lines":
        return "".join(" ".join(line) + "\n" for line in lines), findings
    rows = [f"  {line[0].removeprefix('--')}: {line[1] if len(line) > 1 else 'true'}\n" for line in lines]
    return "args:\n" + "".join(rows), findings


def _option(field: str) -> Place:
    return Place("--" + field.replace("_", "-"))


def flags(
    layout: ParallelLayout, model: ModelShape, *, precision: Literal["bf16", "fp16", "fp32"] = "bf16"
) -> list[tuple[str, ...]]:
    """Each flag with its value, for the arguments of a Megatron training."""
    parallel, experts = layout.parallel, model.num_experts is not None
    grouped = model.query_groups is not None and model.query_groups != model.heads
    values: dict[str, int | bool | None] = {
        "--tensor-model-parallel-size": parallel.tp,
        "--pipeline-model-parallel-size": parallel.pp,
        "--context-parallel-size": parallel.cp,
        "--num-experts": model.num_experts,
        "--expert-model-parallel-size": parallel.ep if experts else None,
        "--expert-tensor-parallel-size": (parallel.etp or parallel.tp) if experts else None,
        "--num-virtual-stages-per-pipeline-rank": parallel.vpp,
        "--decoder-first-pipeline-num-layers": parallel.first_stage_layers,
        "--decoder-last-pipeline-num-layers": parallel.last_stage_layers,
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--num-attention-heads": model.heads,
        "--group-query-attention": grouped,
        "--num-query-groups": model.query_groups if grouped else None,
        "--seq-length": model.seq_length,
        "--max-position-embeddings": model.seq_length,
        "--micro-batch-size": parallel.micro_batch,
        "--global-batch-size": layout.global_batch,
        f"--{precision}": precision != "fp32",
        "--account-for-embedding-in-pipeline-split": parallel.count_embedding,
        "--account-for-loss-in-pipeline-split": parallel.count_loss,
        "--sequence-parallel": parallel.sequence_parallel,
        "--use-distributed-optimizer": parallel.distributed_optimizer,
        "--overlap-grad-reduce": parallel.overlap and layout.dp > 1,
        # Megatron refuses one without the other.
        "--overlap-param-gather": parallel.overlap and layout.dp > 1 and parallel.distributed_optimizer,
        "--no-overlap-p2p-communication": bool(parallel.vpp) and not parallel.overlap,
    }
    given = ((name, value) for name, value in values.items() if value is not None and value is not False)
    return [(name,) if value is True else (name, str(value)) for name, value in given]


_MODEL_KEYS = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "heads": "heads",
    "query_groups": "query_groups",
    "num_experts": "experts",
    "seq_length": "sequence",
}
"""The key of `model:` behind each size."""

_KEYS = {
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--expert-tensor-parallel-size": "etp",
    "--num-virtual-stages-per-pipeline-rank": "vpp",
    "--decoder-first-pipeline-num-layers": "first_stage_layers",
    "--decoder-last-pipeline-num-layers": "last_stage_layers",
    "--account-for-embedding-in-pipeline-split": "count_embedding",
    "--account-for-loss-in-pipeline-split": "count_loss",
    "--micro-batch-size": "micro_batch",
    "--global-batch-size": "global_batch",
    "--sequence-parallel": "sequence_parallel",
    "--use-distributed-optimizer": "distributed_optimizer",
    "--overlap-grad-reduce": "overlap",
    "--overlap-param-gather": "overlap",
    "--no-overlap-p2p-communication": "vpp",
}
"""The key of `parallel:` behind each flag."""

_STAGE_FLAGS = tuple(flag for flag, key in _KEYS.items() if key in UNEVEN_FIELDS)
_OWN_STAGES = ("--pipeline-model-parallel-layout", "--hybrid-layer-pattern")
"""Arguments that name the layers of each stage, which Megatron checks itself."""

_OPTIONS = {f"--{name.replace('_', '-')}": field for name, field in SHAPE_OPTIONS.items()}


def check_layout(
    filler: ValueFiller, layouts: Sequence[ParallelLayout], gpus_per_node: int, model: ModelConfig | None
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
    for layout in layouts:
        found = check(layout, ModelShape(**shape), place, gpus_per_node=gpus_per_node or None, even=even)
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
    given = _arguments(filler)
    asked = filler.resolved.job.precision
    precision: Literal["bf16", "fp16", "fp32"] = asked if asked in ("bf16", "fp16") else "fp32"
    result = []
    for name, *value in flags(
        layout, ModelShape(num_experts=shape_of_arguments(filler.resolved.job.args).num_experts), precision=precision
    ):
        if name == "--num-experts":
            continue  # the job's own argument, by which it is known
        path: KeyPath = ("parallel", _KEYS[name]) if name in _KEYS else ("precision",)
        if name in given:
            written = ".".join(map(str, path))
            message, hint = f"`{name}` is already set by `{written}`", f"remove it here and set `{written}`"
            filler.fault(FindingCode.DUPLICATE_MEGATRON_FLAG, message, given[name], hint)
        origin = filler.resolved.origin(*path) if path in filler.resolved.merged.origins else EXPLICIT
        result.append(Entry(name, value[0] if value else None, origin))
    for name in (flag for flag in _STAGE_FLAGS if flag in given and flag not in {entry.key for entry in result}):
        message, hint = f"`{name}` is not known to the checks and estimates", f"set `parallel.{_KEYS[name]}` instead"
        filler.fault(FindingCode.DUPLICATE_MEGATRON_FLAG, message, given[name], hint)
    return tuple(result)


def _arguments(filler: ValueFiller) -> dict[str, KeyPath]:
    """The path of each option among the job's arguments."""
    return {name: ("args", at) for name, _, at in arguments(filler.resolved.job.args)}
