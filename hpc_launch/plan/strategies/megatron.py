"""Megatron-style flags from a `parallel:` block and the shape of the model."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.parallel import Parallel
from hpc_launch.layouts.parallel_layout import ModelShape, ParallelLayout
from hpc_launch.layouts.parallel_rules import check, check_connections


class _Job(Struct, frozen=True, kw_only=True):
    """Options beyond the layout and the model."""

    world_size: Annotated[int, Meta(description="Total number of processes.", ge=1)]
    gpus_per_node: Annotated[
        int | None, Meta(description="GPUs per node, to check that TP stays within one.", ge=1)
    ] = None
    precision: Annotated[Literal["bf16", "fp16", "fp32"], Meta(description="The precision of the training.")] = "bf16"
    format: Annotated[
        Literal["lines", "args"],
        Meta(description="One flag per line, or an `args:` block for a job file."),
    ] = "lines"


PARTS: tuple[type[Struct], ...] = (_Job, Parallel, ModelShape)
"""The options of `config megatron`: one for each field of these."""


class Megatron(Struct, frozen=True, kw_only=True):
    """A request for Megatron flags: the layout, the model and the job."""

    job: _Job
    parallel: Parallel = Parallel()
    model: ModelShape = ModelShape()


def from_options(**options: object) -> Megatron:
    """A request from one flat set of options. Raises TypeError for an unknown option."""
    parts = []
    for part in PARTS:
        names = part.__struct_fields__
        parts.append(part(**{name: options.pop(name) for name in names if name in options}))
    if options:
        raise TypeError(f"unknown options: {', '.join(options)}")
    job, parallel, model = parts
    return Megatron(job=job, parallel=parallel, model=model)  # type: ignore[arg-type]


def make(asked: Megatron) -> tuple[str | None, list[Finding]]:
    """The flags as text; None with findings if the layout is invalid."""
    layout = ParallelLayout(asked.parallel, asked.job.world_size)
    findings = check(layout, asked.model, _place, gpus_per_node=asked.job.gpus_per_node)
    if errors(findings):
        return None, findings
    findings += check_connections(layout, {}, None)
    lines = flags(layout, asked.model, precision=asked.job.precision)
    return (_as_lines(lines) if asked.job.format == "lines" else _as_args(lines)), findings


def flags(
    layout: ParallelLayout, model: ModelShape, *, precision: Literal["bf16", "fp16", "fp32"] = "bf16"
) -> list[tuple[str, ...]]:
    """Each flag with its value, for the arguments of a Megatron training."""
    parallel = layout.parallel
    values: dict[str, int | None] = {
        "--tensor-model-parallel-size": parallel.tp,
        "--pipeline-model-parallel-size": parallel.pp,
        "--context-parallel-size": parallel.cp,
    }
    if model.num_experts is not None:
        values |= {
            "--num-experts": model.num_experts,
            "--expert-model-parallel-size": parallel.ep,
            "--expert-tensor-parallel-size": parallel.etp or parallel.tp,
        }
    values |= {
        "--num-virtual-stages-per-pipeline-rank": parallel.vpp,
        "--decoder-first-pipeline-num-layers": parallel.first_stage_layers,
        "--decoder-last-pipeline-num-layers": parallel.last_stage_layers,
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--num-attention-heads": model.heads,
    }
    result: list[tuple[str, ...]] = [(name, str(value)) for name, value in values.items() if value is not None]
    if model.query_groups is not None and model.query_groups != model.heads:
        result += [("--group-query-attention",), ("--num-query-groups", str(model.query_groups))]
    if model.seq_length is not None:
        result += [("--seq-length", str(model.seq_length)), ("--max-position-embeddings", str(model.seq_length))]
    result += [
        ("--micro-batch-size", str(parallel.micro_batch)),
        ("--global-batch-size", str(layout.global_batch)),
    ]
    if precision != "fp32":
        result.append((f"--{precision}",))
    return result + [(name,) for name in _switches(layout)]


def _switches(layout: ParallelLayout) -> list[str]:
    parallel = layout.parallel
    result = []
    if parallel.count_embedding:
        result.append("--account-for-embedding-in-pipeline-split")
    if parallel.count_loss:
        result.append("--account-for-loss-in-pipeline-split")
    if parallel.sequence_parallel:
        result.append("--sequence-parallel")
    if parallel.distributed_optimizer:
        result.append("--use-distributed-optimizer")
    if parallel.overlap:
        if layout.dp > 1:
            result.append("--overlap-grad-reduce")
            if parallel.distributed_optimizer:  # Megatron refuses one without the other
                result.append("--overlap-param-gather")
    elif parallel.vpp:
        result.append("--no-overlap-p2p-communication")
    return result


def _place(field: str) -> Place:
    return Place("--" + field.replace("_", "-"))


def _as_lines(lines: list[tuple[str, ...]]) -> str:
    return "".join(" ".join(line) + "\n" for line in lines)


def _as_args(lines: list[tuple[str, ...]]) -> str:
    """The `args:` block of a job file; a bare flag is `true`."""
    rows = [f"  {line[0].removeprefix('--')}: {line[1] if len(line) > 1 else 'true'}\n" for line in lines]
    return "args:\n" + "".join(rows)
