"""Where the time of a run went, as text and as JSON."""

from __future__ import annotations

from typing import Any

from hpc_launch.performance.time_account import TimeAccount
from hpc_launch.view.format_values import duration, share

SMALL = 0.001
"""Categories with a smaller share of the wall time are not listed."""


def time_json(account: TimeAccount) -> dict[str, Any]:
    """`time` and `starting_phases` of `status --json` (docs/json.md), in seconds."""
    return {
        "time": {category: round(seconds, 3) for category, seconds in account.by_category().items()},
        "starting_phases": {phase: round(seconds, 3) for phase, seconds in account.phases().items()},
    }


def time_line(account: TimeAccount) -> str:
    """`training 92.1% of 3 h 05 m; starting 2 m 05 s, repeated 40 s; queued 4 m 10 s`; '' before a job ran."""
    seconds = account.by_category()
    queued, goodput = seconds.pop("queued"), account.goodput
    if goodput is None:
        return ""
    used = account.wall_s - queued
    lost = sorted(((time, name) for name, time in seconds.items() if name != "training"), reverse=True)
    parts = [f"{name} {duration(time)}" for time, name in lost if time >= max(1.0, SMALL * used)]
    text = f"training {share(goodput)} of {duration(used)}"
    text += f"; {', '.join(parts)}" if parts else ""
    return text + (f"; queued {duration(queued)}" if queued >= 1 else "")


def phases_text(account: TimeAccount) -> str:
    """The phases of all starts, longest first: `imports 40 s, first step 12 s`; '' where they are not known."""
    phases = sorted(((seconds, phase) for phase, seconds in account.phases().items() if seconds >= 1), reverse=True)
    return ", ".join(f"{phase.replace('_', ' ')} {duration(seconds)}" for seconds, phase in phases)


def why_lines(account: TimeAccount) -> list[str]:
    """The lines of `why` about the time of the run."""
    texts = {"time": time_line(account), "starts": phases_text(account)}
    return [f"  {name:<9}  {text}" for name, text in texts.items() if text]
