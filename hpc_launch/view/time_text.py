"""Where the time of runs went, as text, as JSON, and as the table of `list --goodput`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from hpc_launch.performance.time_account import CATEGORIES, TimeAccount
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import aligned, duration, number, share
from hpc_launch.view.terminal import write_lines

if TYPE_CHECKING:
    from hpc_launch.performance.measured_pace import CheckpointInterval
    from hpc_launch.performance.time_account import TimeAccount

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


def interval_text(interval: CheckpointInterval) -> str:
    """How often the run should save, with the numbers that this follows from."""
    seen, failures = interval.exposure, interval.exposure.failures
    measured = f"one takes {_precise(interval.cost_s)}"
    measured += f", every {_precise(interval.every_s)}" if interval.every_s is not None else ""
    hours = number(seen.node_s / 3600)
    known = f"{failures} failure{'s' if failures > 1 else ''} in {hours} node hours of this site's runs"
    best, lost = interval.best_s, share(interval.lost(interval.best_s))
    size = f"{interval.nodes} node{'s' if interval.nodes > 1 else ''}"
    rate = f"{known}: one in {_precise(interval.mtbf_s)} on {size}"
    if interval.every_s is None:
        return f"{measured}; {rate}; every {_precise(best)} would lose the least time, {lost}"
    now = share(interval.lost(interval.every_s))
    if interval.good:
        return f"{measured}, which loses about the least time, {now}; {rate}"
    return f"{measured}, loses {now}; every {_precise(best)} would lose the least, {lost}; {rate}"


def interval_json(interval: CheckpointInterval | None) -> dict[str, Any] | None:
    """`checkpoint_interval` of `why --json` (docs/json.md); None where it is not known."""
    if interval is None:
        return None
    return {
        "cost_s": interval.cost_s,
        "checkpoints": interval.checkpoints,
        "every_s": interval.every_s,
        "failures": interval.exposure.failures,
        "node_hours": interval.exposure.node_s / 3600,
        "mtbf_s": interval.mtbf_s,
        "best_s": interval.best_s,
        "lost": interval.lost(interval.every_s) if interval.every_s is not None else None,
        "best_lost": interval.lost(interval.best_s),
    }


def _precise(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{number(seconds)} s"


def why_lines(account: TimeAccount, interval: CheckpointInterval | None) -> list[str]:
    """The lines of `why` about the time of the run."""
    texts = {"time": time_line(account), "starts": phases_text(account)}
    texts["saves"] = interval_text(interval) if interval is not None else ""
    return [f"  {name:<9}  {text}" for name, text in texts.items() if text]


def goodput_lines(statuses: Sequence[RunStatus], accounts: Sequence[TimeAccount]) -> list[str]:
    """One line for each run, and one for all of them if there are several. Empty columns are left out."""
    shown = [name for name in CATEGORIES if any(account.seconds(name) >= 1 for account in accounts)]
    table = [["RUN", "STATE", "GOODPUT", "WALL", *(name.upper() for name in shown)]]
    for status, account in zip(statuses, accounts, strict=True):
        times = [account.wall_s, *(account.seconds(name) for name in shown)]
        table.append([status.run, status.state, _share(account.goodput), *map(_time, times)])
    if len(accounts) > 1:
        used = sum(account.wall_s - account.seconds("queued") for account in accounts)
        trained = sum(account.seconds("training") for account in accounts)
        times = [sum(account.wall_s for account in accounts)]
        times += [sum(account.seconds(name) for account in accounts) for name in shown]
        table.append(["all", "", _share(trained / used if used > 0 else None), *map(_time, times)])
    return aligned(table)


def show_goodput(statuses: Sequence[RunStatus], accounts: Sequence[TimeAccount], stream: TextIO | None = None) -> None:
    """Write the table to `stream` (default: stdout)."""
    write_lines(goodput_lines(statuses, accounts), stream)


def _share(goodput: float | None) -> str:
    return "" if goodput is None else share(goodput)


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else ""
