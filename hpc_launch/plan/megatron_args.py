"""`parallel:` for Megatron: its flags, and the model sizes given in the job's own arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Place, errors
from hpc_launch.layouts.parallel_layout import ModelShape, ParallelLayout
from hpc_launch.layouts.parallel_rules import check
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.launch_plan import Entry
from hpc_launch.plan.strategies.megatron import flags
from hpc_launch.plan.strategy_files import EXPLICIT
from hpc_launch.spec.document import KeyPath

_SIZES = {
    "--num-layers": "num_layers",
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "heads",
    "--num-query-groups": "query_groups",
    "--num-experts": "num_experts",
    "--seq-length": "seq_length",
}

_KEYS = {
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--expert-tensor-parallel-size": "etp",
    "--num-virtual-stages-per-pipeline-rank": "vpp",
    "--micro-batch-size": "micro_batch",
    "--global-batch-size": "global_batch",
    "--sequence-parallel": "sequence_parallel",
    "--use-distributed-optimizer": "distributed_optimizer",
    "--overlap-grad-reduce": "overlap",
    "--overlap-param-gather": "overlap",
    "--no-overlap-p2p-communication": "vpp",
}
"""The key of `parallel:` behind each flag."""


def check_layout(filler: ValueFiller, layouts: Sequence[ParallelLayout], gpus_per_node: int) -> None:
    """Add the findings of the first layout that breaks a rule.

    With Megatron the job's arguments give the sizes of the model; otherwise only the processes can be checked.
    """
    model = filler.resolved.job.strategy.name == "megatron"
    given = dict(_arguments(filler)) if model else {}
    paths: dict[str, KeyPath] = {field: given[name][1] for name, field in _SIZES.items() if name in given}

    def place(field: str) -> Place | None:
        return filler.resolved.place(*paths.get(field, ("parallel", field)))

    for layout in layouts:
        found = check(layout, _shape(given), place, gpus_per_node=gpus_per_node or None)
        # Elsewhere the batch is the strategy's, and whether it fills the stages cannot be known.
        filler.findings.extend(finding for finding in found if model or finding.code != FindingCode.IDLE_STAGES)
        if errors(found):
            return


def megatron_flags(filler: ValueFiller, layout: ParallelLayout) -> tuple[Entry, ...]:
    """The flags that precede the job's own arguments; those must not repeat any of them."""
    given = dict(_arguments(filler))
    asked = filler.resolved.job.precision
    precision: Literal["bf16", "fp16", "fp32"] = asked if asked in ("bf16", "fp16") else "fp32"
    result = []
    for name, *value in flags(layout, ModelShape(num_experts=_shape(given).num_experts), precision=precision):
        if name == "--num-experts":
            continue  # the job's own argument, by which it is known
        path: KeyPath = ("parallel", _KEYS[name]) if name in _KEYS else ("precision",)
        if name in given:
            written = ".".join(map(str, path))
            message = f"`{name}` is already set by `{written}`"
            filler.fault(
                FindingCode.DUPLICATE_MEGATRON_FLAG, message, given[name][1], f"remove it here and set `{written}`"
            )
        origin = filler.resolved.origin(*path) if path in filler.resolved.merged.origins else EXPLICIT
        result.append(Entry(name, value[0] if value else None, origin))
    return tuple(result)


def _shape(given: dict[str, tuple[Any, KeyPath]]) -> ModelShape:
    sizes = {field: str(given[name][0]) for name, field in _SIZES.items() if name in given}
    return ModelShape(**{field: int(text) for field, text in sizes.items() if _is_size(text)})


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def _arguments(filler: ValueFiller) -> Iterator[tuple[str, tuple[Any, KeyPath]]]:
    """Each option among the job's arguments, with its value and place."""
    args = filler.resolved.job.args
    if isinstance(args, dict):
        for key, value in args.items():
            if value is not None and value is not False:
                yield (key if key.startswith("-") else f"--{key}"), (value, ("args", key))
        return
    for index, word in enumerate(args):
        name, equals, value = str(word).partition("=")
        if name.startswith("--"):
            following = args[index + 1] if index + 1 < len(args) else None
            yield name, (value if equals else following, ("args", index))
