"""Rules for parallel layouts, each with its finding.

After Megatron-LM: megatron/training/arguments.py, core/model_parallel_config.py, core/parallel_state.py (d98e8a64).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from hpc_launch.base.findings import Finding, FindingCode, Place, Severity
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import UNEVEN_FIELDS, ModelShape, ParallelLayout, split_for, stage_units

PlaceOf = Callable[[str], Place | None]
"""The place of a value: a field of Parallel or ModelShape, `world_size` or `gpus_per_node`."""


class _Rules:
    """Collects findings, each at the value that is best changed."""

    def __init__(self, place: PlaceOf) -> None:
        self.place = place
        self.findings: list[Finding] = []

    def fault(self, code: FindingCode, message: str, field: str, hint: str, severity: Severity = "error") -> None:
        self.findings.append(Finding(code, message, self.place(field), hint, severity))


def check(
    layout: ParallelLayout,
    model: ModelShape,
    place: PlaceOf,
    *,
    gpus_per_node: int | None = None,
    even: bool = True,
    nvlink_nodes: int = 1,
) -> list[Finding]:
    """Every rule that the layout breaks. Sizes that the model leaves out are not checked.

    `even`: the program's pipeline stages have as many layers each unless `parallel:` says otherwise, like Megatron's.
    `nvlink_nodes`: consecutive nodes of the job whose GPUs NVLink connects, as those of one node.
    """
    rules = _Rules(place)
    _world(rules, layout)
    _experts(rules, layout, model)
    _tensor(rules, layout, model)
    _near(rules, layout, gpus_per_node, nvlink_nodes)
    _pipeline(rules, layout, model, even=even)
    _context(rules, layout, model)
    _batch(rules, layout)
    return rules.findings


def _world(rules: _Rules, layout: ParallelLayout) -> None:
    world, size = layout.world_size, layout.model_parallel
    if world % size:
        message = f"{world} processes are not divisible by TP × PP × CP = {size}"
        below = world // size * size
        near = " or ".join(str(number) for number in (below, below + size) if number)
        hint = f"use {near} processes, or change the sizes"
        rules.fault(FindingCode.PROCESSES_NOT_DIVISIBLE, message, "world_size", hint)
    elif layout.dp * layout.parallel.cp == 1 and layout.parallel.distributed_optimizer:
        # Megatron-LM shares the states over the context-parallel ranks, too (core/parallel_state.py, dp_cp).
        message = "the distributed optimizer has no effect with a single replica"
        hint = "remove it, or use more processes"
        rules.fault(FindingCode.SINGLE_REPLICA, message, "distributed_optimizer", hint, "warning")


def _experts(rules: _Rules, layout: ParallelLayout, model: ModelShape) -> None:
    parallel = layout.parallel
    tensor = parallel.etp or parallel.tp
    if model.num_experts is None:
        if parallel.ep > 1:
            message = f"EP = {parallel.ep}, but the model has no experts"
            rules.fault(FindingCode.EXPERTS_NOT_DIVISIBLE, message, "ep", "set num_experts, or remove ep")
        return
    if model.num_experts % parallel.ep:
        message = f"{model.num_experts} experts are not divisible by EP = {parallel.ep}"
        rules.fault(FindingCode.EXPERTS_NOT_DIVISIBLE, message, "ep", f"use a divisor of {model.num_experts}")
    size = tensor * parallel.ep * parallel.pp
    if layout.world_size % size:
        message = f"{layout.world_size} processes are not divisible by ETP × EP × PP = {size}"
        hint = f"{_expert_sizes(layout, model.num_experts)}: experts are distributed over the same processes"
        rules.fault(FindingCode.EXPERT_PROCESSES_NOT_DIVISIBLE, message, "ep", hint)
    if parallel.ep > 1 and parallel.tp > 1 and not parallel.sequence_parallel:
        message, hint = "experts with tensor parallelism need sequence parallelism", "set sequence_parallel"
        rules.fault(FindingCode.EXPERTS_NEED_SEQUENCE_PARALLEL, message, "sequence_parallel", hint, "warning")


def _expert_sizes(layout: ParallelLayout, experts: int) -> str:
    """The largest ETP, else EP, that fits the processes of a stage."""
    parallel = layout.parallel
    tensor = parallel.etp or parallel.tp
    for name, other, whole in (("etp", parallel.ep, tensor), ("ep", tensor, experts)):
        for size in range(getattr(parallel, name) or tensor, 0, -1):
            if whole % size == 0 and layout.world_size % (size * other * parallel.pp) == 0:
                return f"set `{name}: {size}`"
    return "change ep or etp"


def _tensor(rules: _Rules, layout: ParallelLayout, model: ModelShape) -> None:
    tp = layout.parallel.tp
    if model.heads is not None and model.heads % tp:
        hint = "use a divisor of the heads"
        rules.fault(FindingCode.HEADS_NOT_DIVISIBLE, f"{model.heads} heads are not divisible by TP = {tp}", "tp", hint)
    groups = model.query_groups
    if groups is not None and model.heads is not None and model.heads % groups:
        message = f"{model.heads} heads are not divisible by {groups} query groups"
        rules.fault(FindingCode.QUERY_GROUPS_NOT_DIVISIBLE, message, "query_groups", "use a divisor of the heads")
    if groups is not None and groups % tp:
        if tp % groups:
            message = f"{groups} query groups are not divisible by TP = {tp}, nor TP by the groups"
            rules.fault(FindingCode.QUERY_GROUPS_NOT_DIVISIBLE, message, "tp", "use a TP that divides the groups")
        else:
            message = f"TP = {tp} exceeds the {groups} query groups, which only newer Megatron releases support"
            hint = f"use TP of at most {groups} with older releases"
            rules.fault(FindingCode.QUERY_GROUPS_NOT_DIVISIBLE, message, "tp", hint, "warning")
    if model.hidden_size is not None:
        for count, what, field in ((model.heads, f"{model.heads} heads", "heads"), (tp, f"TP = {tp}", "tp")):
            if count is not None and model.hidden_size % count:
                message = f"hidden size {model.hidden_size} is not divisible by {what}"
                rules.fault(FindingCode.HIDDEN_SIZE_NOT_DIVISIBLE, message, field, "use a divisor of the hidden size")
    if layout.parallel.sequence_parallel and tp == 1:
        message, hint = "sequence parallelism has no effect without tensor parallelism", "remove it, or use TP above 1"
        rules.fault(FindingCode.SEQUENCE_PARALLEL_WITHOUT_TP, message, "sequence_parallel", hint)


def _near(rules: _Rules, layout: ParallelLayout, gpus_per_node: int | None, nvlink_nodes: int) -> None:
    tp, near = layout.parallel.tp, (gpus_per_node or 0) * nvlink_nodes
    if 0 < near < tp:
        where = "a node" if nvlink_nodes == 1 else f"{nvlink_nodes} nodes that NVLink connects"
        message = f"TP = {tp} exceeds the {near} GPUs of {where}, so each layer waits for the network"
        hint = f"use TP of at most {near}, and more pipeline stages"
        rules.fault(FindingCode.TP_OVER_NODES, message, "tp", hint, "warning")


def _division(rules: _Rules, parallel: Parallel, layers: int) -> None:
    """Megatron's stages have as many layers each, or say otherwise (core/transformer/transformer_config.py)."""
    units = stage_units(layers, parallel)
    counted = [
        name for name, on in (("the embedding", parallel.count_embedding), ("the loss", parallel.count_loss)) if on
    ]
    ends = [size for size in (parallel.first_stage_layers, parallel.last_stage_layers) if size is not None]
    field = "first_stage_layers" if parallel.first_stage_layers is not None else "last_stage_layers"
    if ends and counted:
        message = "the layers of a stage cannot be set while the embedding or the loss counts as a layer"
        rules.fault(FindingCode.UNEVEN_STAGES, message, field, "keep either, and remove the other")
    elif units is None and ends:
        middle, rest = max(parallel.pp - len(ends), 0), max(layers - sum(ends), 0)
        message = f"{rest} of {layers} layers remain for {middle} other stages, which must share them evenly"
        rules.fault(FindingCode.UNEVEN_STAGES, message, field, _split_hint(layers, parallel))
    elif units is None:
        what = f"{layers} layers" + "".join(f" and {name}" for name in counted)
        message = f"{what} are not divisible by PP = {parallel.pp}"
        rules.fault(FindingCode.LAYERS_NOT_DIVISIBLE, message, "pp", _split_hint(layers, parallel))
    elif parallel.vpp and (uneven := next((size for size in units if size % parallel.vpp), None)) is not None:
        message = f"{uneven} layers per stage are not divisible by VPP = {parallel.vpp}"
        rules.fault(FindingCode.STAGE_LAYERS_NOT_DIVISIBLE, message, "vpp", "use a divisor of the layers per stage")


def _split_hint(layers: int, parallel: Parallel) -> str:
    split = split_for(layers, parallel.pp)
    if split is None:
        return "use a PP that divides the layers"
    keys = {name: getattr(split, name) for name in UNEVEN_FIELDS if getattr(split, name)}
    if not keys:
        return "remove " + " and ".join(f"`{name}`" for name in UNEVEN_FIELDS if getattr(parallel, name))
    return "use a divisor, or set " + ", ".join(f"`{name}: {str(value).lower()}`" for name, value in keys.items())


def _pipeline(rules: _Rules, layout: ParallelLayout, model: ModelShape, *, even: bool) -> None:
    parallel, layers = layout.parallel, model.num_layers
    if layers is not None and even:
        _division(rules, parallel, layers)
    elif layers is not None and layers < parallel.pp:
        message = f"{layers} layers cannot fill {parallel.pp} pipeline stages"
        rules.fault(FindingCode.LAYERS_NOT_DIVISIBLE, message, "pp", f"use PP of at most {layers}")
    if parallel.vpp is None:
        return
    if parallel.pp == 1 or (parallel.pp == 2 and not parallel.overlap):
        needed = "more than one pipeline stage" if parallel.pp == 1 else "more than two pipeline stages, or overlap"
        message, hint = f"virtual stages need {needed}", "remove vpp, or add what it needs"
        rules.fault(FindingCode.TOO_FEW_STAGES, message, "vpp", hint)
    rest = layout.microbatches % parallel.pp
    if rest:
        # A group has PP micro batches by default (microbatch_group_size_per_vp_stage); Megatron refuses a smaller
        # last group.
        message = f"{layout.microbatches} micro batches are not divisible by PP = {parallel.pp}"
        message += ", as virtual stages require"
        hint = "use a global batch that results in a multiple of PP micro batches"
        rules.fault(FindingCode.MICRO_BATCHES_NOT_DIVISIBLE, message, "vpp", hint)


def _context(rules: _Rules, layout: ParallelLayout, model: ModelShape) -> None:
    cp = layout.parallel.cp
    if cp > 1 and model.seq_length is not None and model.seq_length % (2 * cp):
        message = f"sequence length {model.seq_length} is not divisible by 2 × CP = {2 * cp}"
        hint = "use a multiple: each GPU takes two chunks to balance the causal mask"
        rules.fault(FindingCode.SEQUENCE_NOT_DIVISIBLE, message, "seq_length", hint)
    tp = layout.parallel.tp
    if layout.parallel.sequence_parallel and tp > 1 and model.seq_length is not None and model.seq_length % (tp * cp):
        message = f"sequence length {model.seq_length} is not divisible by TP × CP = {tp * cp}"
        hint = "use a multiple: sequence parallelism splits the sequence over TP"
        rules.fault(FindingCode.SEQUENCE_NOT_DIVISIBLE, message, "seq_length", hint)


def _batch(rules: _Rules, layout: ParallelLayout) -> None:
    parallel = layout.parallel
    if layout.world_size % layout.model_parallel:
        return
    unit = parallel.micro_batch * layout.dp
    if layout.global_batch % unit:
        below = layout.global_batch // unit * unit
        near = " or ".join(str(number) for number in (below, below + unit) if number)
        message = f"the global batch {layout.global_batch} is not divisible by micro batch × replicas = {unit}"
        rules.fault(FindingCode.GLOBAL_BATCH_NOT_DIVISIBLE, message, "global_batch", f"use {near}")
    elif layout.microbatches < parallel.pp:
        message = f"{layout.microbatches} micro batches keep some of {parallel.pp} pipeline stages idle at all times"
        hint = f"use a global batch of at least {unit * parallel.pp}: the idle share is (PP - 1) / micro batches"
        rules.fault(FindingCode.IDLE_STAGES, message, "global_batch", hint, "warning")


def check_connections(
    layout: ParallelLayout,
    environment: Mapping[str, str],
    place: Place | None,
    *,
    strategy: Literal["megatron", "fsdp"] = "megatron",
) -> list[Finding]:
    """Check CUDA_DEVICE_MAX_CONNECTIONS: 1 for TP or CP overlap before Blackwell (sm < 10), never 1 with FSDP."""
    value = environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    parallel = layout.parallel
    if strategy == "fsdp":
        if value == "1":
            message = "CUDA_DEVICE_MAX_CONNECTIONS=1 prevents FSDP from overlapping communication and computation"
            return [Finding(FindingCode.WRONG_MAX_CONNECTIONS, message, place, "remove it")]
        return []
    if needs_one_connection(layout) and value != "1":
        split = "TP" if parallel.tp > 1 else "CP"
        message = f"Megatron with {split} requires CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell"
        return [Finding(FindingCode.WRONG_MAX_CONNECTIONS, message, place, "set it in `env:`", "warning")]
    return []


def needs_one_connection(layout: ParallelLayout) -> bool:
    """Whether Megatron requires CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell."""
    return layout.parallel.tp > 1 or layout.parallel.cp > 1
