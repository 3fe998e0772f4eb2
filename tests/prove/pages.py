"""Generate the results of the last runs in the pages: what lies between two comments that name the part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.requirements import REPOSITORY
from tests.cluster.roots import SYSTEMS
from tests.prove import drivers, goodput, inside, killed, node_check, restart, ssh_faults, ssh_kills, sweep
from tests.prove.grid import page as grid
from tests.prove.matrix import GROUPS, ROWS
from tests.prove.roles import deaths, pairs, times
from tests.prove.rounds import Rounds
from tests.prove.row import Row
from tests.prove.state import PLACE, State

PAGE = REPOSITORY / "docs" / "evidence" / "fault-matrix.md"
MEASURED = REPOSITORY / "docs" / "evidence" / "measured.md"
SECTIONS: dict[str, tuple[Path, Callable[[dict[str, Any]], str]]] = {
    "inside": (MEASURED, inside.section),
    "goodput": (MEASURED, goodput.section),
    "node check": (MEASURED, node_check.section),
    "healthy nodes": (MEASURED, node_check.section_of_healthy),
    "restart": (REPOSITORY / "benchmarks" / "recovery.md", restart.section),
    "ssh-kills": (MEASURED, ssh_kills.section),
    "ssh-faults": (MEASURED, ssh_faults.section),
    **{one.GROUP: (MEASURED, one.section) for one in (times, deaths, pairs)},
    "sweep": (MEASURED, sweep.section),
    "drivers": (PAGE, drivers.section),
    "killed": (PAGE, killed.section),
    "grid": (PAGE, lambda played: grid.section(grid.merged(played))),
}
"""The parts besides the matrix, their pages and what they become there; a part that was not run here stays."""

COLUMNS = "| fault | found | node, rank | attempts | ended | resumed after | kept |"
FAILED = " **failed**"
FAILURES = "\n## Rows that failed\n"


def prove(rounds: Rounds) -> int:
    """Write the pages; 1 if rows of the matrix are missing or failed."""
    state = rounds.state
    for name, (path, section) in SECTIONS.items():
        if state.data.get(name):
            fill(path, name, section(state.data[name]))
    text, good = matrix(state.data["rows"], PAGE.read_text())
    fill(PAGE, "matrix", text)
    others = elsewhere()
    if others:
        fill(PAGE, "other systems", others)
    print(f"{PAGE}: {good} of {len(ROWS)} rows as expected")
    return 0 if good == len(ROWS) else 1


def matrix(rows: dict[str, Any], page: str) -> tuple[str, int]:
    """The part of the matrix, and how many rows had their result; a row that was not run here is as it was."""
    before = {line[2:].partition(" |")[0].removesuffix(FAILED): line for line in page.splitlines() if line[:2] == "| "}
    reasons = page.partition(FAILURES)[2].splitlines()
    text, wrong, good = [], [], 0
    for title, keys in GROUPS.items():
        text += [f"\n## {title}\n", COLUMNS, "|---" * COLUMNS.count(" | ") + "|---|"]
        for key in keys:
            row, outcome = ROWS[key], rows.get(key)
            kept = before.get(row.fault, f"| {row.fault} | not run | | | | | |")
            text.append(kept if outcome is None else line(row, outcome))
            if FAILED in text[-1]:
                head = f"- {row.fault}: "
                wrong += [one for one in reasons if one.startswith(head)] if outcome is None else []
                wrong += [head + "; ".join(outcome["faults"])] if outcome is not None else []
            good += FAILED not in text[-1] and "| not run |" not in text[-1]
    text += ["\n## Notes\n", *(f"- {row.fault}: {row.note}." for row in ROWS.values() if row.note)]
    if wrong:
        text += [FAILURES, *wrong]
    text.append(f"\n{good} of {len(ROWS)} rows had the expected result.")
    return "\n".join(text).strip(), good


def fill(path: Path, name: str, text: str) -> None:
    """Replace what lies between the two comments of a part."""
    head, begin, rest = path.read_text().partition(f"<!-- {name}: ")
    first, _, rest = rest.partition("\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    assert end, f"{path} has no place for {name}"
    path.write_text(f"{head}{begin}{first}\n\n{text}\n\n{end}{tail}")


def elsewhere() -> str:
    """Return a sentence for each newer Slurm that the rows were run on."""
    states = {name: State(path).data["rows"] for name in SYSTEMS if (path := PLACE / f"state-{name}.json").exists()}
    return " ".join(
        f"On the Slurm of Debian {name}, {sum(row['ok'] for row in rows.values())} of {len(ROWS)} had it."
        for name, rows in states.items()
    )


def line(row: Row, outcome: dict[str, Any]) -> str:
    """Return a row of the table."""
    found = f"{outcome['found']}, {outcome['verdict'] or 'no verdict'}"
    asked = row.node is not None or row.rank is not None or outcome["verdict"] == "RETRY_ELSEWHERE"
    place = " ".join(filter(None, [outcome["node"], outcome["rank"] and f"rank {outcome['rank']}"])) if asked else ""
    resumed = "" if outcome["resumed_s"] is None else f"{outcome['resumed_s']:.0f} s"
    kept = "–"
    if row.loss is not None:
        kept = "no" if outcome["loss"] is None else row.loss
        if outcome["lost_steps"]:
            kept += f" ({outcome['lost_steps']})"
    mark = "" if outcome["ok"] else FAILED
    return (
        f"| {row.fault}{mark} | {found} | {place} | {outcome['attempts']} | {outcome['state']} | {resumed} | {kept} |"
    )
