"""docs/fault-matrix.md: the rows with what came of each when they were last run."""

from __future__ import annotations

from typing import Any

from tests.cluster.requirements import REPOSITORY
from tests.prove.matrix import State
from tests.prove.row import Row
from tests.prove.rows import GROUPS, ROWS

PAGE = REPOSITORY / "docs" / "fault-matrix.md"

COLUMNS = "| fault | found | node, rank | attempts | ended | resumed after | kept |"

HEAD = """\
# The fault matrix

<!-- Made by `python -m tests.prove pages`, a part of `make prove`. Do not change it by hand. -->

Faults that were planted into real runs, on the Slurm of the tests (four nodes on one machine, Slurm 22.05), and what
hpc-launch made of each with nobody there but `hpc-launch watch`. `make prove` runs it anew, and goes on where it was
interrupted; `python -m tests.prove matrix ROW` runs one row. `make test` runs some of the rows.

- **found**: the class and the verdict of the first attempt that failed, as `status` and [`why`](failures.md) both say,
  and the node and rank that failed first, where the fault has a place.
- **attempts** and **ended**: how many there were, and the state of the run.
- **resumed after**: seconds from the fault to the first step that is new. What Slurm itself takes is in it: 20 to 40 s
  for a lost node. The pause before a RETRY is set to a second.
- **kept**: the final loss beside that of an undisturbed run. *same*: to the last bit; *near*: within 1e-3, as the micro
  batch changed. In brackets the steps that had to be made again. A dash stands where the run has to end.
- A row that did not come out as it has to is marked **failed**, with the reason below the table.

The trainings are small (`tests/prove/training`): two ranks that add up gradients by gloo or by sockets, checkpoints
every second step. There is no GPU: what PyTorch says of one is quoted.
"""


def write(state: State) -> int:
    """Write the page; 1 if rows are missing or failed."""
    rows = state.data["rows"]
    text, wrong = [HEAD], []
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
    text.append(f"\n{good} of {len(ROWS)} rows came out as they have to.")
    rounds = state.data.get("drivers", {})
    if rounds:
        text.append(drivers(rounds))
    PAGE.write_text("\n".join(text) + "\n")
    print(f"{PAGE}: {good} of {len(ROWS)} rows as expected")
    return 0 if good == len(ROWS) else 1


def line(row: Row, outcome: dict[str, Any]) -> str:
    """A row of the table."""
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


def drivers(rounds: dict[str, Any]) -> str:
    """What came of the drivers that were killed and frozen."""
    good = sum(one["ok"] for one in rounds.values())
    killed, frozen, late = (sum(one.get(name, 0) for one in rounds.values()) for name in ("killed", "frozen", "late"))
    doubled = sum("times" in text for one in rounds.values() for text in one["wrong"])
    return f"""
## Drivers that are killed and frozen

In each round a run fails once, and six drivers are at it: five from outside and the job's own hook, each to be killed
(SIGKILL) or frozen (SIGSTOP, woken up later) after one step of [the protocol](recovery.md#who-does-it). In {good}
of {len(rounds)} rounds each attempt was trained once and the run ended COMPLETED with its second training; {killed}
drivers were killed and {frozen} frozen at their step, the others found the work done. No attempt was trained twice in
{len(rounds) - doubled} of {len(rounds)} rounds.{_late(late)}{_open(len(rounds) - good)}"""


def _late(count: int) -> str:
    return f" {_rounds(count)} took ten minutes, for nothing told that a driver was gone." if count else ""


def _open(count: int) -> str:
    return f" {_rounds(count)} had not ended when the page was made." if count else ""


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"
