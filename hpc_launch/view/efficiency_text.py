"""The efficiency card: what a job used of what it requested, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_launch.estimate.efficiency import Efficiency
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import aligned, clean, duration, number, share


def efficiency_fields(found: Efficiency) -> list[tuple[str, str]]:
    """The card as names and texts: `use`, such as `GPUs 31%, CPUs 3.9 of 8`, and `advice`; empty texts are unknown."""
    text = ", ".join(f"{name} {text}" for name, text in _texts(found).items() if text)
    return [("use", text), ("advice", clean(found.advice))]


def efficiency_lines(statuses: Sequence[RunStatus], uses: Sequence[Efficiency]) -> list[str]:
    """The table of `list --efficiency`: runs with idle GPUs first, then by the use of the GPUs."""
    rows = [["RUN", "STATE", "GPUS", "IDLE", "MEMORY", "CPUS", "TIME", "ADVICE"]]
    for run, use in sorted(zip(statuses, uses, strict=True), key=lambda pair: pair[1].order):
        gpus, *others = _texts(use).values()
        rows.append([run.run, run.state, gpus, str(use.idle_gpus or ""), *others, use.advice])
    return aligned(rows, empty=False)


def _texts(found: Efficiency) -> dict[str, str]:
    """Each use with what was requested; '' where it is not known."""
    memory = f" of {number(found.memory_requested)}" if found.memory_requested else ""
    cpus, limit = f" of {found.cpus_requested}" if found.cpus_requested else "", found.time_requested
    return {
        "GPUs": share(found.gpu_use) if found.gpu_use is not None else "",
        "memory": f"{number(found.memory)}{memory} GiB" if found.memory is not None else "",
        "CPUs": number(found.cpus) + cpus if found.cpus is not None else "",
        "time": f"{duration(found.time)} of {duration(limit)}" if found.time is not None and limit else "",
    }
