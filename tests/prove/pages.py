"""Generate the results of the last runs in the pages: what lies between two comments that name the part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.requirements import REPOSITORY
from tests.cluster.roots import SYSTEMS
from tests.prove import drivers, goodput, inside, killed, node_check, restart, ssh_faults, ssh_kills, sweep
from tests.prove.matrix import GROUPS, ROWS
from tests.prove.rounds import Rounds
from tests.prove.row import Row
from tests.prove.state import PLACE, State

PAGE = REPOSITORY / "docs" / "fault-matrix.md"
SECTIONS: dict[str, tuple[Path, Callable[[dict[str, Any]], str]]] = {
    "inside": (REPOSITORY / "docs" / "recovery.md", inside.section),
    "goodput": (REPOSITORY / "docs" / "goodput.md", goodput.section),
    "node check": (node_check.PAGE, node_check.section),
    "healthy nodes": (node_check.PAGE, node_check.section_of_healthy),
    "restart": (REPOSITORY / "benchmarks" / "recovery.md", restart.section),
    "ssh-kills": (REPOSITORY / "docs" / "ssh.md", ssh_kills.section),
    "ssh-faults": (REPOSITORY / "docs" / "ssh.md", ssh_faults.section),
    "sweep": (REPOSITORY / "docs" / "sweeps.md", sweep.section),
}
"""The parts besides the matrix, their pages and what they become there."""

COLUMNS = "| fault | found | node, rank | attempts | ended | resumed after | kept |"


def prove(rounds: Rounds) -> int:
    """Write the page; 1 if rows are missing or failed."""
    state = rounds.state
    for name, (path, section) in SECTIONS.items():
        if state.data.get(name):
            fill(path, name, section(state.data[name]))
    rows = state.data["rows"]
    text, wrong = [], []
    for title, keys in GROUPS.items():
        text += [f"\n## {title}\n", COLUMNS, "|---" * COLUMNS.count(" | ") + "|---|"]
        for key in keys:
            row, outcome = ROWS[key], rows.get(key)
            if outcome is None:
                text.append(f"| {row.fault} | not run | | | | | |")
                continue
            text.append(line(row, outcome))
            if not outcome["ok"]:
                wrong.append(f"- {row.fault}: {'; '.join(outcome['faults'])}")
    notes = [f"- {row.fault}: {row.note}." for row in ROWS.values() if row.note]
    text += ["\n## Notes\n", *notes]
    if wrong:
        text += ["\n## Rows that failed\n", *wrong]
    good = sum(outcome["ok"] for key, outcome in rows.items() if key in ROWS)
    text.append(f"\n{good} of {len(ROWS)} rows had the expected result.{elsewhere()}")
    if state.data.get("drivers"):
        text.append(drivers.section(state.data["drivers"]))
    if state.data.get("killed"):
        text.append(killed.section(state.data["killed"]))
    fill(PAGE, "matrix", "\n".join(text).strip())
    print(f"{PAGE}: {good} of {len(ROWS)} rows as expected")
    return 0 if good == len(ROWS) else 1


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
    return "".join(
        f" On the Slurm of Debian {name}, {sum(row['ok'] for row in rows.values())} of {len(ROWS)} had it."
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
    mark = "" if outcome["ok"] else " **failed**"
    return (
        f"| {row.fault}{mark} | {found} | {place} | {outcome['attempts']} | {outcome['state']} | {resumed} | {kept} |"
    )
