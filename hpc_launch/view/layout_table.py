"""The layouts of `plan --search` as a table and as JSON, and the groups of a layout with their links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from hpc_launch.estimate.compare_layouts import ComparedLayout
from hpc_launch.estimate.gpu import Gpu
from hpc_launch.job.document import flow_text
from hpc_launch.job.units import counted
from hpc_launch.layouts.parallel_layout import GroupKind, RankGroups
from hpc_launch.plan.job_estimate import GIB, gib, layout_keys
from hpc_launch.prepare.job_plan import JobLayouts
from hpc_launch.view.format_values import aligned, number

_NAMES: dict[GroupKind, str] = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "dp": "data parallel",
    "pp": "pipeline",
    "etp": "tensor parallel in experts",
    "ep": "expert parallel",
    "edp": "data parallel of experts",
}


def link_lines(groups: Sequence[RankGroups], gpu: Gpu | None) -> Iterator[str]:
    """A line for each kind of group: its size, and the links that it uses."""
    for one in groups:
        speed = ""
        if gpu is not None:
            rate = gpu.node_bandwidth if one.spread.nodes == 1 else gpu.network_bandwidth
            speed = f", {rate / 1e9:.0f} GB/s per GPU"
        where = "within a node" if one.spread.nodes == 1 else f"across {one.spread.nodes} nodes"
        count = f"{counted(one.count, 'group')} of {one.size}"
        yield f"{_NAMES[one.kind]}: {count}, {where}{speed}"


MOST_ROWS = 20
_SIZES = ("tp", "pp", "vpp", "cp", "ep")
_SETUP = ("sharding", "offload_optimizer", "offload_parameters", "recompute")
_OPTIONAL = ("TP", "PP", "LAYERS", "VPP", "CP", "EP")
"""Columns that tell nothing where no layout splits anything that way."""


def stage_text(layers: tuple[int, ...]) -> str:
    """Layers of the pipeline stages: `3+14×4+2`."""
    runs = [(size, len(list(same))) for size, same in groupby(layers)]
    return "+".join(f"{count}×{size}" if count > 1 else str(size) for size, count in runs)


def _texts(one: ComparedLayout) -> dict[str, str]:
    """A row of the table by its columns."""
    layout = one.setup.layout
    sizes = {name: str(getattr(layout.parallel, name) or "-") for name in _SIZES}
    return {
        "TP": sizes["tp"],
        "PP": sizes["pp"],
        "LAYERS": stage_text(one.stage_layers) if len(set(one.stage_layers)) > 1 else "-",
        **{name.upper(): sizes[name] for name in ("vpp", "cp", "ep")},
        "DP": str(layout.dp),
        "MICRO": str(layout.parallel.micro_batch),
        "STEPS": str(layout.microbatches),
        "SHARDING": one.setup.sharding.replace("_", " "),
        "RECOMPUTE": one.setup.recompute,
        "GIB": gib(one.memory.total),
    }


def layout_lines(layouts: JobLayouts) -> Iterator[str]:
    """A row for each layout, the fastest first; `*` is the recommended one. Says what the times mean."""
    found = layouts.found
    if not found.layouts:
        least = f"; the least demanding needs {gib(found.least_memory)} GiB per GPU" if found.least_memory else ""
        yield f"none of {found.allowed} layouts fits{least}"
        return
    time = "SECONDS" if layouts.pace is not None else "TIME"
    shown = found.layouts[:MOST_ROWS]
    texts = [_texts(one) for one in shown]
    left_out = {name for name in _OPTIONAL if all(text[name] in {"1", "-"} for text in texts)}
    titles = [title for title in texts[0] if title not in left_out]
    rows: list[tuple[str, ...]] = [("", "ROW", *titles, time)]
    for at, (one, text) in enumerate(zip(shown, texts, strict=True), 1):
        mark = "*" if one == layouts.recommended else ""
        taken = number(one.step_s) if layouts.pace is not None else f"{one.step_s / shown[0].step_s:.2f}"
        rows.append((mark, str(at), *(text[title] for title in titles), taken))
    yield from aligned(rows)
    if len(found.layouts) > MOST_ROWS:
        yield f"and {len(found.layouts) - MOST_ROWS} more; --json lists all"
    yield "* the simplest of the layouts that are about as fast as the fastest"
    if layouts.pace is not None:
        yield f"SECONDS of a step, calibrated by {layouts.pace.run}"
    else:
        yield "TIME of a step relative to the fastest: it ranks layouts and does not predict seconds; see --pace-of RUN"
    if layouts.recommended is not None:
        yield "in the job file, * is:"
        for key, values in layout_keys(layouts.job, layouts.recommended.setup).items():
            yield f"  {key}: {flow_text(values)}"


def layouts_json(layouts: JobLayouts) -> dict[str, Any]:
    """The object of `plan --search --json` (docs/reference/json.md)."""
    listed = layouts.found.layouts
    return {
        "layouts": [_layout_json(one, layouts) for one in listed],
        "recommended": listed.index(layouts.recommended) + 1 if layouts.recommended in listed else None,
        "allowed": layouts.found.allowed,
        "calibrated_by": layouts.pace.run if layouts.pace is not None else None,
    }


def _layout_json(one: ComparedLayout, layouts: JobLayouts) -> dict[str, Any]:
    layout = one.setup.layout
    return {
        **{name: getattr(layout.parallel, name) for name in _SIZES},
        "stage_layers": list(one.stage_layers),
        "dp": layout.dp,
        "micro_batch_size": layout.parallel.micro_batch,
        "global_batch_size": layout.global_batch,
        "gradient_accumulation_steps": layout.microbatches,
        **{name: getattr(one.setup, name) for name in _SETUP},
        "job_file": layout_keys(layouts.job, one.setup),
        "memory_gib": {"total": one.memory.total / GIB, "low": one.memory.low / GIB, "high": one.memory.high / GIB},
        "relative_time": one.step_s / layouts.found.layouts[0].step_s,
        "step_s": one.step_s if layouts.pace is not None else None,
    }
