"""A converted script as tables: what became of its lines, and its launch beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_launch.from_script.compare_launch import ComparedValue
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.view.format_values import aligned

_OUTCOMES = {"taken": "taken over", "unnecessary": "unnecessary", "not_understood": "NOT UNDERSTOOD"}
_WIDEST = 60


def account_table(script: OldScript) -> Iterator[str]:
    """Each line of the script with its account."""
    rows = [("LINE", "OUTCOME", "TEXT", "KEYS AND REASON")]
    for account in script.accounts:
        said = "; ".join(part for part in (", ".join(account.keys), account.why) if part)
        rows.append((str(account.line), _OUTCOMES[account.outcome], _short(account.text.strip()), said))
    yield from aligned(rows)


def comparison_table(rows: Sequence[ComparedValue]) -> Iterator[str]:
    """Both launches, property by property."""
    table = [("", "OLD SCRIPT", "HPC-LAUNCH", "", "")]
    for row in rows:
        table.append((row.what, _short(row.old or "-"), _short(row.new or "-"), row.status, row.why))
    yield from aligned(table)


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
