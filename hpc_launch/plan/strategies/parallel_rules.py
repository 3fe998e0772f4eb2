"""The algebra of parallel layouts, each rule a finding.

After Megatron-LM: megatron/training/arguments.py, core/model_parallel_config.py, core/parallel_state.py (d98e8a64).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from hpc_launch.base.findings import Finding, Place
from hpc_launch.plan.strategies.parallel import Layout, ModelShape

PlaceOf = Callable[[str], Place | None]
"""Where a value was asked for: a field of Parallel or ModelShape, or `world_size`, `gpus_per_node`."""


class _Rules:
    """Collects findings with the place of the value that is best changed."""

    def __init__(self, place: PlaceOf) -> None:
        self.place = place
        self.findings: list[Finding] = []

    def fault(self, code: str, message: str, field: str, hint: str) -> None:
        self.findings.append(Finding(code, message, self.place(field), hint))

    def warn(self, code: str, message: str, field: str, hint: str) -> None:
        self.findings.append(Finding(code, message, self.place(field), hint, "warning"))


def check(layout: Layout, model: ModelShape, place: PlaceOf, *, gpus_per_node: int | None = None) -> list[Finding]:
    """Every rule that the layout breaks. Sizes that the model does not name are not checked."""
    rules = _Rules(place)
    _world(rules, layout)
    _experts(rules, layout, model)
    _tensor(rules, layout, model, gpus_per_node)
    _pipeline(rules, layout, model)
    _context(rules, layout, model)
    _batch(rules, layout)
    return rules.findings


def _world(rules: _Rules, layout: Layout) -> None:
    world, size = layout.world_size, layout.model_parallel
    if world % size:
        message = f"{world} processes cannot be divided into copies of the model of TP × PP × CP = {size}"
        below = world // size * size
        near = " or ".join(str(number) for number in (below, below + size) if number)
        rules.fault("HL640", message, "world_size", f"use {near} processes, or other sizes")
    elif layout.dp == 1 and layout.parallel.distributed_optimizer:
        message = "the distributed optimizer has one replica only: nothing to share"
        rules.warn("HL656", message, "distributed_optimizer", "leave it out, or use more processes")


def _experts(rules: _Rules, layout: Layout, model: ModelShape) -> None:
    parallel = layout.parallel
    tensor = parallel.etp or parallel.tp
    if model.num_experts is None:
        if parallel.ep > 1:
            message = f"{parallel.ep} GPUs shall share experts, but the model has none"
            rules.fault("HL642", message, "ep", "set num_experts, or leave ep out")
        return
    if model.num_experts % parallel.ep:
        message = f"{model.num_experts} experts cannot be divided over {parallel.ep} GPUs"
        rules.fault("HL642", message, "ep", f"use a divisor of {model.num_experts}")
    size = tensor * parallel.ep * parallel.pp
    if layout.world_size % size:
        message = f"{layout.world_size} processes cannot be divided by ETP × EP × PP = {size}"
        rules.fault("HL641", message, "ep", "experts are laid over the same processes: choose ep, etp to fit them")
    if parallel.ep > 1 and parallel.tp > 1 and not parallel.sequence_parallel:
        message = "experts with tensor parallelism want sequence parallelism as well"
        rules.warn("HL651", message, "sequence_parallel", "turn sequence_parallel on")


def _tensor(rules: _Rules, layout: Layout, model: ModelShape, gpus_per_node: int | None) -> None:
    tp = layout.parallel.tp
    if model.heads is not None and model.heads % tp:
        rules.fault("HL643", f"{model.heads} heads cannot be divided by TP = {tp}", "tp", "use a divisor of the heads")
    groups = model.query_groups
    if groups is not None and model.heads is not None and model.heads % groups:
        message = f"{model.heads} heads cannot be divided into {groups} query groups"
        rules.fault("HL644", message, "query_groups", "use a divisor of the heads")
    if groups is not None and groups % tp:
        if tp % groups:
            message = f"{groups} query groups and TP = {tp}: neither divides the other"
            rules.fault("HL644", message, "tp", "choose a TP that divides the groups")
        else:
            message = f"TP = {tp} is more than the {groups} query groups: only newer Megatron copies the groups"
            rules.warn("HL644", message, "tp", f"use a TP of at most {groups} elsewhere")
    if model.hidden_size is not None:
        for count, what, field in ((model.heads, "heads", "heads"), (tp, f"TP = {tp}", "tp")):
            if count is not None and model.hidden_size % count:
                message = f"the hidden size {model.hidden_size} cannot be divided by {what}"
                rules.fault("HL657", message, field, "choose a divisor")
    if layout.parallel.sequence_parallel and tp == 1:
        message = "sequence parallelism does nothing without tensor parallelism"
        rules.fault("HL650", message, "sequence_parallel", "leave it out, or use a TP above 1")
    if gpus_per_node and tp > gpus_per_node:
        message = f"TP = {tp} reaches over the {gpus_per_node} GPUs of a node: each layer waits for the network"
        rules.warn("HL654", message, "tp", f"use at most {gpus_per_node}, and more pipeline stages")


def _pipeline(rules: _Rules, layout: Layout, model: ModelShape) -> None:
    parallel, layers = layout.parallel, model.num_layers
    if layers is not None and layers % parallel.pp:
        message = f"{layers} layers cannot be divided into {parallel.pp} stages"
        hint = "use a divisor, or say the layers of the first and last stage in the training's own arguments"
        rules.fault("HL645", message, "pp", hint)
    elif layers is not None and parallel.vpp and (layers // parallel.pp) % parallel.vpp:
        message = f"{layers // parallel.pp} layers a stage cannot be divided into {parallel.vpp} virtual stages"
        rules.fault("HL646", message, "vpp", "use a divisor of the layers a stage")
    if parallel.vpp is None:
        return
    if parallel.pp == 1 or (parallel.pp == 2 and not parallel.overlap):
        needed = "more than one pipeline stage" if parallel.pp == 1 else "more than two stages, or overlap"
        rules.fault("HL647", f"virtual stages need {needed}", "vpp", "leave vpp out, or add what it needs")
    rest = layout.microbatches % parallel.pp
    if rest:
        # The group has PP micro batches by default (microbatch_group_size_per_vp_stage); the last one may not be
        # smaller than PP, which it always is.
        message = f"{layout.microbatches} micro batches do not fill groups of {parallel.pp}, as virtual stages want"
        rules.fault("HL648", message, "vpp", "choose a global batch that makes a multiple of PP micro batches")


def _context(rules: _Rules, layout: Layout, model: ModelShape) -> None:
    cp = layout.parallel.cp
    if cp > 1 and model.seq_length is not None and model.seq_length % (2 * cp):
        message = f"a sequence of {model.seq_length} cannot be divided by 2 × CP = {2 * cp}"
        rules.fault("HL649", message, "seq_length", "each GPU takes two parts, to balance the causal mask")
    tp = layout.parallel.tp
    if layout.parallel.sequence_parallel and tp > 1 and model.seq_length is not None and model.seq_length % (tp * cp):
        message = f"a sequence of {model.seq_length} cannot be divided by TP × CP = {tp * cp}"
        rules.fault("HL649", message, "seq_length", "sequence parallelism shares it over the TP GPUs")


def _batch(rules: _Rules, layout: Layout) -> None:
    parallel = layout.parallel
    if layout.world_size % layout.model_parallel:
        return
    unit = parallel.micro_batch * layout.dp
    if layout.global_batch % unit:
        below = layout.global_batch // unit * unit
        near = " or ".join(str(number) for number in (below, below + unit) if number)
        message = f"the global batch {layout.global_batch} cannot be divided by micro batch × replicas = {unit}"
        rules.fault("HL652", message, "global_batch", f"use {near}")
    elif layout.microbatches < parallel.pp:
        message = f"{layout.microbatches} micro batches leave some of {parallel.pp} pipeline stages always idle"
        hint = f"use a global batch of {unit * parallel.pp} or more: the idle part is (PP - 1) / micro batches"
        rules.warn("HL653", message, "global_batch", hint)


def check_connections(
    layout: Layout,
    environment: Mapping[str, str],
    place: Place | None,
    *,
    strategy: Literal["megatron", "fsdp"] = "megatron",
    blackwell: bool = False,
) -> list[Finding]:
    """CUDA_DEVICE_MAX_CONNECTIONS: 1 for TP or CP overlap before Blackwell (sm < 10), never 1 with FSDP."""
    value = environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    parallel = layout.parallel
    if strategy == "fsdp":
        if value == "1":
            message = "CUDA_DEVICE_MAX_CONNECTIONS=1 keeps FSDP from communicating while it computes"
            return [Finding("HL655", message, place, "leave it out")]
        return []
    if needs_one_connection(layout) and value != "1" and not blackwell:
        split = "TP" if parallel.tp > 1 else "CP"
        message = f"Megatron with {split} refuses to start unless CUDA_DEVICE_MAX_CONNECTIONS is 1 (before Blackwell)"
        return [Finding("HL655", message, place, "set it in `env:`", "warning")]
    return []


def needs_one_connection(layout: Layout) -> bool:
    """Whether Megatron wants CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell."""
    return layout.parallel.tp > 1 or layout.parallel.cp > 1
