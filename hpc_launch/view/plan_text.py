"""The plan of a job as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins

from hpc_launch.estimate.gpu import Gpu, Unknown
from hpc_launch.estimate.memory import MemoryEstimate, reductions
from hpc_launch.estimate.step_time import Walltime
from hpc_launch.estimate.training_setup import stage_layers
from hpc_launch.job.units import counted, format_time
from hpc_launch.model.model_config import active_parameters, parameters
from hpc_launch.plan.job_estimate import GIB, JobEstimate, JobTraining, gib
from hpc_launch.prepare.job_plan import JobPlan, ScaledPace
from hpc_launch.view.format_values import clean, duration, number, share
from hpc_launch.view.layout_table import link_lines, stage_text
from hpc_launch.view.state_text import interval_json, interval_text

_INDENT = 12
_BAR = 30
_CATEGORIES = (
    "parameters", "gradients", "optimizer", "activations", "logits", "buffers", "context", "fragmentation",
)  # fmt: skip


def plan_lines(plan: JobPlan) -> Iterator[str]:
    """The plan as a page of text. Findings are not part of it."""
    sections = (
        ("job", _job(plan)),
        ("layout", _layout(plan)),
        ("batch", _batch(plan)),
        ("model", _model(plan)),
        ("memory", _memory(plan)),
        ("time", _time(plan)),
        ("cost", _cost(plan)),
    )
    for title, lines in sections:
        for at, line in enumerate(lines):
            yield f"{title if at == 0 else '':<{_INDENT}}{clean(line)}"


def _job(plan: JobPlan) -> Iterator[str]:
    size = plan.size
    gpus = f" × {size.gpus_per_node} GPUs" if size.gpus_per_node else ""
    if gpus and len(set(size.slots)) > 1:
        gpus = f" with {' + '.join(map(str, size.slots))} GPUs"
    gpu = plan.estimate.gpu if plan.estimate is not None else None
    kind = f" ({gpu.name})" if isinstance(gpu, Gpu) and size.gpus_per_node else ""
    time = f", {format_time(size.time_s)}" if size.time_s is not None else ""
    nodes = f"{counted(plan.nodes, 'node')}"
    yield f"{plan.name} on {plan.site}, queue {size.queue_name}: {nodes}{gpus}{kind}{time}"


def _layout(plan: JobPlan) -> Iterator[str]:
    layout, parallel = plan.layout, plan.layout.parallel
    if layout.world_size % layout.model_parallel:
        yield f"{layout.world_size} processes are not divisible by TP × PP × CP = {layout.model_parallel}"
        return
    product = f"DP {layout.dp} × TP {parallel.tp} × PP {parallel.pp} × CP {parallel.cp}"
    yield f"{layout.world_size} processes = {product}; EP {parallel.ep}"
    training = plan.estimate.training if plan.estimate is not None else None
    if plan.model is not None and isinstance(training, JobTraining):
        layers = stage_layers(plan.model.layers, training.setup)
        if len(set(layers)) > 1:
            yield f"layers of the pipeline stages: {stage_text(layers)}"
    gpu = plan.estimate.gpu if plan.estimate is not None else None
    yield from link_lines(plan.groups, gpu if isinstance(gpu, Gpu) and plan.size.gpus_per_node else None)


def _batch(plan: JobPlan) -> Iterator[str]:
    if not plan.batch_known:
        yield "not given: set `micro_batch` and `global_batch` in `strategy:`"
        return
    layout = plan.layout
    if not plan.divides:
        yield "unknown: the layout is not valid"
        return
    micro, steps, dp = layout.parallel.micro_batch, layout.microbatches, layout.dp
    text = f"{layout.global_batch} = micro batch {micro} × accumulation {steps} × {counted(dp, 'replica')}"
    training = plan.estimate.training if plan.estimate is not None else None
    if isinstance(training, JobTraining):
        text += f"; {layout.global_batch * training.setup.sequence:,} tokens per step"
    yield text


def _model(plan: JobPlan) -> Iterator[str]:
    model = plan.model
    if model is None:
        yield "unknown: set or correct `model:` for memory and time"
        return
    total, active = parameters(model).total, active_parameters(model)
    per_token = f", of which each token uses {_count(active)}" if active != total else ""
    yield f"{model.name + ': ' if model.name else ''}{_count(total)} parameters{per_token}"


def _memory(plan: JobPlan) -> Iterator[str]:
    estimate = plan.estimate
    if estimate is None:
        if plan.model is not None:
            yield "unknown: the layout is not valid"
        return
    if isinstance(estimate.training, Unknown):
        yield f"unknown: {estimate.training.reason}; {estimate.training.hint}"
        return
    needs, available = estimate.memory, estimate.available
    if needs is None:
        return
    stage = f", pipeline stage {needs.stage + 1}" if plan.layout.parallel.pp > 1 else ""
    has = f" of {gib(available)} GiB" if available is not None else ""
    yield f"{gib(needs.total)} GiB ({gib(needs.low)} to {gib(needs.high)}){has} per GPU{stage}"
    scale = max(needs.total, available or 0)
    for name in _CATEGORIES:
        size = getattr(needs, name)
        yield f"  {name:<14}{gib(size):>7}  {'█' * round(_BAR * size / scale)}".rstrip()
    if available is not None:
        over = needs.total - available
        yield f"  {'free':<14}{gib(-over):>7}" if over <= 0 else f"  {'too much':<14}{gib(over):>7}"
    if plan.pace is not None and plan.pace.peak_mib is not None:
        yield f"measured: {gib(plan.pace.peak_mib * 2**20)} GiB in use on the fullest GPU of {plan.pace.run}"
    yield from (f"assumed: {text}" for text in estimate.training.assumed)
    for one in reductions(estimate.model, estimate.training.setup)[:3]:
        yield f"would save {gib(one.saved)} GiB: {one.change}"


def _time(plan: JobPlan) -> Iterator[str]:
    pace, step_s, scaled = plan.pace, plan.step_s, plan.scaled
    if pace is not None and isinstance(scaled, str):
        yield f"unknown: {pace.run} took {number(pace.step_s)} s per step, but {scaled}"
    elif pace is not None and isinstance(scaled, ScaledPace):
        by = f"measured by {counted(pace.steps, 'step')} of {pace.run} (attempt {pace.attempt})"
        if scaled.measured:
            yield f"{number(scaled.step_s)} s per step, {by}"
        else:
            low, high = number(scaled.low_s), number(scaled.high_s)
            yield f"{number(scaled.step_s)} s per step ({low} to {high}), scaled by the estimates of both layouts"
            yield f"from {number(pace.step_s)} s, {by} with {pace.processes} processes"
    elif step_s is not None:
        yield f"{number(step_s)} s per step: a rough estimate; measure it with a short run and `--pace-of RUN`"
    if plan.walltime is not None:
        yield from _walltime(plan, plan.walltime)
    elif isinstance(scaled, ScaledPace) or (scaled is None and step_s is not None):
        yield "the last step is unknown: the arguments name none"
    elif pace is None:
        yield "unknown: measure it with a short run and `--pace-of RUN`"
    if pace is None:
        return
    if pace.interval is not None:
        yield f"checkpoints: {interval_text(pace.interval)}"
    elif pace.longest_save_s is not None:
        yield f"checkpoints: the longest took {duration(pace.longest_save_s)}; no failure of this site is known"
    if pace.lead_s is not None:
        yield f"warning: at least {duration(pace.lead_s)} before the time limit (`checkpoint: {{signal_before: …}}`)"


def _walltime(plan: JobPlan, need: Walltime) -> Iterator[str]:
    limit = f" of {format_time(plan.size.time_s)}" if plan.size.time_s is not None else ""
    if need.jobs is None or need.wall_s is None:
        yield f"{counted(need.steps, 'step')}: a job{limit} has no time for a single step"
        return
    yield f"{counted(need.steps, 'step')}: {duration(need.wall_s)}, {counted(need.jobs, 'job')}{limit}"
    if plan.limit_s is not None and plan.size.time_s is not None and plan.limit_s > plan.size.time_s and need.jobs > 1:
        yield f"the queue allows {format_time(plan.limit_s)} per job"


def _cost(plan: JobPlan) -> Iterator[str]:
    if not plan.gpus:
        return
    hours = plan.job_gpu_hours
    if hours is not None:
        yield f"at most {_hours(hours)} GPU-hours per job"
    if plan.walltime is not None and plan.walltime.gpu_hours is not None:
        yield f"about {_hours(plan.walltime.gpu_hours)} GPU-hours for the whole training"
    if plan.balance is not None:
        held = plan.balance
        left = held.limit_h - held.used_h
        unit = "GPU-hours" if held.resource == "gres/gpu" else f"hours of {held.resource}"
        used = share(held.used_h / held.limit_h) if held.limit_h else "100%"
        yield f"account {held.account}: {_hours(left)} of {_hours(held.limit_h)} {unit} left ({used} used)"
    elif plan.slurm:
        yield "balance of the account: not reported by Slurm"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"


def _count(value: int) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,}"


def plan_json(plan: JobPlan) -> dict[str, Any]:
    """The object of `plan --json` (docs/reference/json.md)."""
    layout, parallel, model = plan.layout, plan.layout.parallel, plan.model
    known = plan.batch_known and plan.divides
    training = plan.estimate.training if plan.estimate is not None else None
    parts = {"batch": _batch, "model": _model, "memory": _memory, "time": _time}
    firsts = {name: next(iter(part(plan)), "").partition(": ") for name, part in parts.items()}
    return {
        "world_size": layout.world_size,
        **{key: getattr(parallel, key) for key in ("tp", "pp", "cp", "ep")},
        "dp": layout.dp,
        "micro_batch_size": parallel.micro_batch if known else None,
        "global_batch_size": layout.global_batch if known else None,
        "gradient_accumulation_steps": layout.microbatches if known else None,
        "parameters": parameters(model).total if model is not None else None,
        "active_parameters": active_parameters(model) if model is not None else None,
        "memory_gib": _memory_json(plan.estimate),
        "groups": [
            {"kind": one.kind, "size": one.size, "count": one.count, "nodes": one.spread.nodes} for one in plan.groups
        ],
        "gpus": plan.gpus,
        "time": _time_json(plan),
        "gpu_hours": plan.walltime.gpu_hours if plan.walltime is not None else None,
        "job_gpu_hours": plan.job_gpu_hours,
        "balance": to_builtins(plan.balance),
        "unknown": {name: why for name, (mark, _, why) in firsts.items() if mark in ("unknown", "not given")},
        "assumed": list(training.assumed) if isinstance(training, JobTraining) else [],
        "findings": [finding.as_json() for finding in plan.findings],
    }


def _memory_json(estimate: JobEstimate | None) -> dict[str, Any] | None:
    if estimate is None or estimate.memory is None:
        return None
    needs: MemoryEstimate = estimate.memory
    names = (*_CATEGORIES, "total", "low", "high")
    values = {name: getattr(needs, name) / GIB for name in names}
    return values | {"available": None if estimate.available is None else estimate.available / GIB}


def _time_json(plan: JobPlan) -> dict[str, Any] | None:
    pace, need, scaled = plan.pace, plan.walltime, plan.scaled
    if pace is None and plan.step_s is None:
        return None
    known = scaled if isinstance(scaled, ScaledPace) else None
    step_s = known.step_s if known else plan.step_s if pace is None else None
    source = "estimated" if pace is None else "scaled" if known is None or not known.measured else "measured"
    return {
        "step_s": step_s,
        "low_s": known.low_s if known else None,
        "high_s": known.high_s if known else None,
        "source": source,
        "run": pace.run if pace is not None else None,
        "steps": need.steps if need is not None else None,
        "wall_s": need.wall_s if need is not None else None,
        "jobs": need.jobs if need is not None else None,
        "job_limit_s": plan.size.time_s,
        "queue_limit_s": plan.limit_s,
        "checkpoint_interval": interval_json(pace.interval) if pace is not None else None,
        "warning_lead_s": pace.lead_s if pace is not None else None,
    }
