"""Runs as a table, and the table of where their time went."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TextIO

from hpc_launch.performance.time_account import CATEGORIES, TimeAccount
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import ago, aligned, clean, cut, display_width, duration, hosts, number, pad, share
from hpc_launch.view.state_text import elapsed, last_attempt, reason_text, startup_text, step_text
from hpc_launch.view.terminal import columns, is_terminal, painted, wants_colour, write_lines

HEADERS = ("RUN", "STATE", "TIME", "STEP", "LOSS", "JOB", "SITE", "HOSTS", "WHY")

_DROP_ORDER = ("SITE", "LOSS", "JOB", "HOSTS", "WHY", "STEP", "TIME")
"""Order in which columns are dropped on a narrow terminal; name and state always stay, and are never cut: names are
copied by hand."""

_ELASTIC = (HEADERS.index("HOSTS"), HEADERS.index("WHY"))
_LEAST = 12
"""To what width the last columns may be cut."""

_GAP = "  "


def table_lines(
    statuses: Iterable[RunStatus], *, width: int | None = None, colour: bool = False, now: float | None = None
) -> list[str]:
    """The runs as lines with aligned columns, in the order given. Empty columns are left out.

    In `width` columns the least important ones are dropped too, and the last ones cut.
    """
    when, shown_runs = time.time() if now is None else now, list(statuses)
    rows = [HEADERS, *(_texts(status, when) for status in shown_runs)]
    widths = [max(display_width(row[at]) for row in rows) for at in range(len(HEADERS))]
    shown = [at for at in range(len(HEADERS)) if at < 2 or any(row[at] for row in rows[1:])]
    if width is not None:
        shown, widths = _fitting(shown, widths, width)
    lines = [[pad(cut(row[at], widths[at]), widths[at]) for at in shown] for row in rows]
    for line, status in zip(lines[1:], shown_runs, strict=True):
        line[1] = line[1].replace(status.state, painted(status.state, status.state, colour=colour))
    return [_GAP.join(line).rstrip() for line in lines]


def _fitting(shown: list[int], full: list[int], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit, and the width of each."""
    widths = [min(wide, _LEAST) if at in _ELASTIC else wide for at, wide in enumerate(full)]

    def left() -> int:
        return width - sum(widths[at] + len(_GAP) for at in shown) + len(_GAP)

    for name in _DROP_ORDER:
        if left() >= 0:
            break
        shown = [at for at in shown if HEADERS[at] != name]
    for at in filter(shown.__contains__, _ELASTIC):
        widths[at] = min(full[at], widths[at] + max(left(), 0))
    return shown, widths


def show(statuses: Iterable[RunStatus], stream: TextIO | None = None) -> None:
    """Write the table of runs to `stream` (default: stdout)."""
    out = stream or sys.stdout
    width = columns() if is_terminal(out) else None
    write_lines(table_lines(statuses, width=width, colour=wants_colour(out)), out)


def _texts(status: RunStatus, now: float) -> tuple[str, ...]:
    progress = status.progress
    return (
        clean(status.run),
        status.state,
        _time(status, now),
        step_text(progress),
        "" if progress.loss is None else number(progress.loss),
        clean(status.job_id or ""),
        clean(status.site),
        hosts(status.hosts),
        "" if status.state == "COMPLETED" else startup_text(status, now) or reason_text(status),
    )


def _time(status: RunStatus, now: float) -> str:
    attempt = last_attempt(status)
    if attempt is None:
        return ""
    if attempt.ended is not None:
        return ago(now - attempt.ended)
    if status.progress.eta_s and not status.final:
        return f"{duration(status.progress.eta_s)} left"
    spent = elapsed(attempt, now)
    if spent is not None:
        return f"for {duration(spent)}"
    if status.state in ("PENDING", "STUCK") and attempt.submitted is not None:
        return f"queued {duration(now - attempt.submitted)}"
    return ""


def goodput_lines(statuses: Sequence[RunStatus], accounts: Sequence[TimeAccount]) -> list[str]:
    """One line for each run, and one for all of them if there are several. Empty columns are left out."""
    shown = [name for name in CATEGORIES if any(account.seconds(name) >= 1 for account in accounts)]
    table = [["RUN", "STATE", "GOODPUT", "WALL", *(name.upper() for name in shown)]]
    for status, account in zip(statuses, accounts, strict=True):
        times = [account.wall_s, *(account.seconds(name) for name in shown)]
        table.append([status.run, status.state, _goodput(account.goodput), *map(_spent, times)])
    if len(accounts) > 1:
        used = sum(account.wall_s - account.seconds("queued") for account in accounts)
        trained = sum(account.seconds("training") for account in accounts)
        times = [sum(account.wall_s for account in accounts)]
        times += [sum(account.seconds(name) for account in accounts) for name in shown]
        table.append(["all", "", _goodput(trained / used if used > 0 else None), *map(_spent, times)])
    return aligned(table)


def show_goodput(statuses: Sequence[RunStatus], accounts: Sequence[TimeAccount]) -> None:
    """Write the table to stdout."""
    write_lines(goodput_lines(statuses, accounts))


def _goodput(goodput: float | None) -> str:
    return "" if goodput is None else share(goodput)


def _spent(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else ""
