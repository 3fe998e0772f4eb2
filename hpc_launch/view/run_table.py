"""Runs as a table: with rich on a terminal, else as aligned plain text."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import ago, clean, display_width, duration, hosts, number, pad
from hpc_launch.view.state_text import elapsed, last_attempt, reason_text, startup_text, step_text
from hpc_launch.view.terminal import STATE_COLOURS, columns, is_terminal, wants_colour, write_lines

if TYPE_CHECKING:
    from rich.table import Table

HEADERS = ("RUN", "STATE", "TIME", "STEP", "LOSS", "JOB", "SITE", "HOSTS", "WHY")

_DROP_ORDER = ("SITE", "LOSS", "JOB", "HOSTS", "WHY", "STEP", "TIME")
"""Order in which columns are dropped on a narrow terminal; name and state always stay."""

_ELASTIC = (HEADERS.index("HOSTS"), HEADERS.index("WHY"))
_LEAST = 12
"""To what width the last columns may be cut."""

_GAP = 2


@dataclass(frozen=True)
class Row:
    """The display_width of a run, with escapes removed."""

    state: str
    texts: tuple[str, ...]


def rows(statuses: Iterable[RunStatus], now: float | None = None) -> list[Row]:
    """The rows of a table, in the order given."""
    at = time.time() if now is None else now
    return [Row(status.state, _texts(status, at)) for status in statuses]


def fitting(table: Sequence[Row], width: int) -> list[int]:
    """The columns that fit in `width`: empty columns are dropped, then the least important ones."""
    shown = [at for at in range(len(HEADERS)) if at < 2 or any(row.texts[at] for row in table)]
    needed = _least(table)
    for name in _DROP_ORDER:
        if sum(needed[at] + _GAP for at in shown) - _GAP <= width:
            break
        shown = [at for at in shown if HEADERS[at] != name]
    return shown


def plain_lines(table: Sequence[Row], shown: Sequence[int] | None = None) -> list[str]:
    """The table as aligned text, without tabs, colour or truncation."""
    chosen = fitting(table, 10**6) if shown is None else shown
    widths = _widths(table)
    texts = [HEADERS, *(row.texts for row in table)]
    return [(" " * _GAP).join(pad(text[at], widths[at]) for at in chosen).rstrip() for text in texts]


def rich_table(table: Sequence[Row], width: int) -> Table:
    """The table for rich, in colour, with the last columns truncated to the terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = fitting(table, width)
    full, widths = _widths(table), _least(table)
    for at in filter(shown.__contains__, _ELASTIC):
        left = width - sum(widths[one] + _GAP for one in shown) + _GAP
        widths[at] = min(full[at], widths[at] + max(left, 0))
    result = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for at in shown:
        result.add_column(Text(HEADERS[at]), no_wrap=True, overflow="ellipsis", width=widths[at])
    for row in table:
        colours = {1: STATE_COLOURS.get(row.state, "")}
        result.add_row(*(Text(row.texts[at], style=colours.get(at, "")) for at in shown))
    return result


def show(statuses: Iterable[RunStatus], stream: TextIO | None = None) -> None:
    """Write the table of runs to `stream` (default: stdout)."""
    out = stream or sys.stdout
    table = rows(statuses)
    if not is_terminal(out):
        write_lines(plain_lines(table), out)
        return
    from rich.console import Console

    # Names are copied by hand: let the terminal wrap a long line rather than truncate the name.
    # rich before 14.3 pads the last column too.
    minimum = sum(_widths(table)[:2]) + 2 * _GAP
    width = max(columns(), minimum)
    console = Console(file=out, highlight=False, markup=False, emoji=False, width=width)
    console.no_color = not wants_colour(out)
    console.print(rich_table(table, width))


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


def _widths(table: Sequence[Row]) -> list[int]:
    return [max(len(header), *(display_width(row.texts[at]) for row in table), 0) for at, header in enumerate(HEADERS)]


def _least(table: Sequence[Row]) -> list[int]:
    return [min(width, _LEAST) if at in _ELASTIC else width for at, width in enumerate(_widths(table))]
