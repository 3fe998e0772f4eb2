"""What the grid is and what came of it: a part of docs/evidence/fault-matrix.md, by the results committed here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.prove.grid.cells import EVENTS, LAUNCHERS, OUTSIDE, PLACES, RANKS, Cell, cells, faults

RESULTS = Path(__file__).with_name("results.json")
"""What was wrong with each cell that was played last, by its key; nothing where it was right."""

Results = dict[str, list[str]]


def merged(played: Mapping[str, Any]) -> Results:
    """The committed results with those of this machine's last runs, which are put on file beside them."""
    known: Results = json.loads(RESULTS.read_text())
    results = {**known, **{key: one["wrong"] for key, one in played.items() if key in _every()}}
    lines = [f" {json.dumps(key)}: {json.dumps(results[key])}" for key in sorted(results)]
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return results


def section(results: Results) -> str:
    """The part of the page."""
    every = _every()
    whats: dict[str, list[str]] = {}
    for what, _, _ in faults():
        kind, _, value = what.partition(":")
        whats.setdefault(kind, [])
        whats[kind] += [value] if value not in ("", *whats[kind]) else []
    rows = [
        ("what", "; ".join(f"{kind} ({', '.join(values)})" if values else kind for kind, values in whats.items())),
        ("who", f"{', '.join(RANKS)} of the ranks; {', '.join(OUTSIDE)}"),
        ("when", ", ".join(PLACES)),
        *((f"launcher, {name}", ", ".join(launchers)) for name, launchers in LAUNCHERS.items()),
        *((f"events, {name}", ", ".join(events)) for name, events in EVENTS.items()),
    ]
    text = ["| dimension | values |", "|---|---|", *(f"| {name} | {values} |" for name, values in rows), ""]
    text += ["| scheduler | cells | played | open half: right | closed half: right |", "|---|---|---|---|---|"]
    for scheduler in LAUNCHERS:
        mine = [every[key] for key in results if key in every and every[key].scheduler == scheduler]
        halves = [_right([cell for cell in mine if cell.open is half], results) for half in (True, False)]
        text.append(f"| {scheduler} | {len(cells(scheduler))} | {len(mine)} | {' | '.join(halves)} |")
    wrong = {key: why for key, why in sorted(results.items()) if why and key in every}
    if wrong:
        text += ["", "Every cell that failed:", "", "| cell | half | why |", "|---|---|---|"]
        text += [f"| `{key}` | {_half(every[key])} | {_cell('; '.join(why))} |" for key, why in wrong.items()]
    return "\n".join(text)


def _every() -> dict[str, Cell]:
    return {cell.key: cell for scheduler in LAUNCHERS for cell in cells(scheduler)}


def _half(cell: Cell) -> str:
    return "open" if cell.open else "closed"


def _right(mine: list[Cell], results: Results) -> str:
    good = sum(not results[cell.key] for cell in mine)
    return f"{good} of {len(mine)} ({good / len(mine):.0%})" if mine else "–"


def _cell(text: str) -> str:
    """As it can stand in a row of a table."""
    return " ".join(text.replace("|", "\\|").split())[:300]
