"""`list --goodput`: runs with the time in each category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from hpc_launch.performance.time_account import CATEGORIES, TimeAccount
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import aligned, duration, share
from hpc_launch.view.terminal import write_lines


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
