"""The layouts of `plan --compare` as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from hpc_launch.drive.job_layouts import JobLayouts
from hpc_launch.estimate.compare_layouts import ComparedLayout
from hpc_launch.plan.job_estimate import GIB, gib
from hpc_launch.view.format_values import number
from hpc_launch.view.host_tables import aligned

MOST_ROWS = 20
_SIZES = ("tp", "pp", "vpp", "cp", "ep")


def layout_lines(layouts: JobLayouts) -> Iterator[str]:
    """A row for each layout, the fastest first; `*` is the recommended one. Says what the times mean."""
    found = layouts.found
    if not found.layouts:
        least = f"; the least demanding needs {gib(found.least_memory)} GiB per GPU" if found.least_memory else ""
        yield f"none of {found.allowed} layouts fits{least}"
        return
    time = "SECONDS" if layouts.pace is not None else "TIME"
    shown = found.layouts[:MOST_ROWS]
    uneven = any(len(set(one.stage_layers)) > 1 for one in shown)
    sizes = ("TP", "PP", *(("LAYERS",) if uneven else ()), "VPP", "CP", "EP", "DP", "MICRO", "STEPS")
    rows: list[tuple[str, ...]] = [("", "ROW", *sizes, "SHARDING", "RECOMPUTE", "GIB", time)]
    for at, one in enumerate(shown, 1):
        parallel = one.setup.layout.parallel
        rows.append(
            (
                "*" if one == layouts.recommended else "",
                str(at),
                str(parallel.tp),
                str(parallel.pp),
                *((_layers(one.stage_layers),) if uneven else ()),
                *(str(getattr(parallel, name) or "-") for name in ("vpp", "cp", "ep")),
                str(one.setup.layout.dp),
                str(parallel.micro_batch),
                str(one.setup.layout.microbatches),
                one.setup.sharding.replace("_", " "),
                one.setup.recompute,
                gib(one.memory.total),
                _time(one, layouts),
            )
        )
    yield from aligned(rows)
    if len(found.layouts) > MOST_ROWS:
        yield f"and {len(found.layouts) - MOST_ROWS} more; --json lists all"
    yield "* the simplest of the layouts that are about as fast as the fastest"
    if layouts.pace is not None:
        yield f"SECONDS of a step, calibrated by {layouts.pace.run}"
    else:
        yield "TIME of a step relative to the fastest: it ranks layouts and does not predict seconds; see --from RUN"


def _layers(sizes: tuple[int, ...]) -> str:
    """Layers of the pipeline stages: `3+14×4+2`."""
    runs = [(size, len(list(same))) for size, same in groupby(sizes)]
    return "+".join(f"{count}×{size}" if count > 1 else str(size) for size, count in runs)


def _time(one: ComparedLayout, layouts: JobLayouts) -> str:
    if layouts.pace is not None:
        return number(one.step.total)
    return f"{one.step.total / layouts.found.layouts[0].step.total:.2f}"


def layouts_json(layouts: JobLayouts) -> dict[str, Any]:
    """The object of `plan --compare --json` (docs/json.md)."""
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
        "sharding": one.setup.sharding,
        "recompute": one.setup.recompute,
        "memory_gib": {"total": one.memory.total / GIB, "low": one.memory.low / GIB, "high": one.memory.high / GIB},
        "relative_time": one.step.total / layouts.found.layouts[0].step.total,
        "step_s": one.step.total if layouts.pace is not None else None,
    }
