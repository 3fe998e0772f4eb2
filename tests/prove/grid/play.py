"""Play cells, one run each: its diagnosis beside the right answer."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from hpc_launch.service.diagnose import ALIVE
from tests.prove.grid.cells import OUTSIDE, Cell, cells
from tests.prove.grid.oracle import Answer, answer
from tests.prove.grid.place import PLACES, Place
from tests.prove.rounds import Rounds
from tests.prove.state import PLACE

CELLS = {"local": 400, "slurm": 80, "ssh": 60}
"""How many cells are played of each scheduler."""
LONGEST_S = {"local": 150.0, "slurm": 400.0, "ssh": 300.0}


@dataclass
class Outcome:
    """What came of a cell."""

    key: str
    open: bool
    wrong: list[str] = field(default_factory=list)
    failure_class: str = ""
    cause: str = ""
    verdict: str = ""
    rank: int | None = None
    nodes: list[str] = field(default_factory=list)
    state: str = ""
    steps_repeated: int = 0
    took_s: float = 0.0


def play(cell: Cell) -> Outcome:
    """One cell from submission to the diagnosis of its first attempt."""
    began, outcome = time.monotonic(), Outcome(cell.key, cell.open)
    place = PLACES[cell.scheduler](cell)
    try:
        place.write()
        done = place.call("submit", "job.yaml", "--json")
        if done.returncode:
            raise RuntimeError(f"refused: {done.stderr.strip()}")
        if cell.who in (*OUTSIDE, "scheduler"):
            place.strike()
        status, watched = _follow(place)
        told = place.call("why", "@last", "--attempt", "1", "--json")
        why = json.loads(told.stdout) if told.stdout.startswith("{") else {}
        _judge(outcome, cell, status, why, place)
        if outcome.state in ALIVE:
            outcome.wrong.append(watched)
    except Exception as error:  # a cell that breaks is a cell that failed
        outcome.wrong.append(f"{type(error).__name__}: {error}")
    outcome.took_s = round(time.monotonic() - began, 1)
    name = cell.key.replace("/", "+").replace(":", "-")
    place.end(PLACE / "grid" / name if outcome.wrong else None)
    return outcome


def _follow(place: Place) -> tuple[dict[str, Any], str]:
    """Watch the run to its end, as somebody would: its status, and what the watching came to."""
    try:
        done = place.call("watch", "@last", seconds=LONGEST_S[place.cell.scheduler])
        watched = f"watch ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
    except subprocess.TimeoutExpired as error:
        watched = str(error)
    return json.loads(place.call("status", "@last", "--json").stdout), watched


def _judge(outcome: Outcome, cell: Cell, status: dict[str, Any], why: dict[str, Any], place: Place) -> None:
    right: Answer = answer(cell)
    outcome.state = status["state"]
    outcome.failure_class, outcome.cause = str(why.get("class")), str(why.get("cause"))
    outcome.verdict = str(why.get("verdict"))
    outcome.rank = (why.get("first_failure") or {}).get("rank")
    outcome.nodes = sorted({node for one in status["attempts"] for node in one["overrides"].get("exclude", ())})
    struck = None if right.node is None else place.node(right.node)
    if any(node != struck for node in outcome.nodes):
        outcome.wrong.append(f"{', '.join(outcome.nodes)} excluded, not {struck or 'any'}")
    if outcome.failure_class not in right.classes:
        outcome.wrong.append(f"class {outcome.failure_class}, not {'/'.join(sorted(right.classes))}")
    if outcome.verdict not in right.verdicts:
        outcome.wrong.append(f"verdict {outcome.verdict}, not {'/'.join(sorted(right.verdicts))}")
    if outcome.rank is not None and right.rank is not None and outcome.rank != right.rank:
        outcome.wrong.append(f"rank {outcome.rank}, not {right.rank}")
    if outcome.rank is None and right.must_name and outcome.failure_class != "success":
        outcome.wrong.append("no rank named")
    made = Counter(place.steps())
    outcome.steps_repeated = sum(count - 1 for count in made.values())
    if outcome.steps_repeated:
        outcome.wrong.append("a step was made twice in one attempt")
    # The fault strikes the first attempt only: the next one completes.
    good = outcome.verdict not in {"STOP", "NONE"} or outcome.failure_class == "success"
    states = {"COMPLETED"} if good else {"FAILED", "STOPPED", "CANCELLED"}
    if outcome.state not in states:
        outcome.wrong.append(f"{outcome.state}, not {'/'.join(sorted(states))}: {status['reason']}")


def prove(rounds: Rounds) -> int:
    """Play the first cells of each scheduler that have not succeeded yet, or those whose key holds one of the names."""
    every = {cell.key: cell for scheduler in CELLS for cell in cells(scheduler)}
    names, rounds.names = rounds.names, []
    wanted = [key for key in every if any(name in key for name in names)]
    for scheduler, count in CELLS.items() if not names else ():
        wanted += [cell.key for cell in cells(scheduler)][: count if rounds.count is None else rounds.count]
    left = wanted if names else rounds.left("grid", wanted)
    code = rounds.run("grid", left, lambda key: asdict(play(every[key])))
    found = rounds.state.data.get("grid", {})
    for scheduler in CELLS:
        for name, half in (("open", True), ("closed", False)):
            keys = [key for key in wanted if every[key].scheduler == scheduler and every[key].open is half]
            part = [found[key] for key in keys if key in found]
            if part:
                print(f"{scheduler}, {name} half: {sum(one['ok'] for one in part)} of {len(part)} right")
    return code
