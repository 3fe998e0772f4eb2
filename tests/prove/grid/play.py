"""Play cells on this machine's own scheduler: one run each, its diagnosis beside the right answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.requirements import REPOSITORY
from tests.prove.grid.cells import OUTSIDE, Cell, cells
from tests.prove.grid.oracle import Answer, answer
from tests.prove.rounds import Rounds, processes
from tests.prove.scene import RECORDS
from tests.prove.state import PLACE

TRAINING = REPOSITORY / "tests" / "prove" / "training"
CELLS = 400
"""How many cells are played."""
LONGEST_S = 150.0
HANG_S, BUSY_S = 8, 20


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
    state: str = ""
    steps_repeated: int = 0
    took_s: float = 0.0


class Place:
    """A home for one run."""

    def __init__(self, home: Path, cell: Cell) -> None:
        self.home, self.cell, self.record = home, cell, home / "record"
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.env = {**kept, "HOME": str(home), "HPC_LAUNCH_SITE": "local", "HPC_LAUNCH_HOME": str(home / "runs")}
        self.project = home / "project"
        shutil.copytree(TRAINING, self.project, ignore=shutil.ignore_patterns("__pycache__"))
        processes = 1 if cell.launcher == "none" else 2
        outside = cell.who in OUTSIDE
        job = {
            "name": "cell",
            "launcher": cell.launcher,
            "processes_per_node": processes,
            "hang": {"after": f"{HANG_S}s", "busy_after": f"{BUSY_S}s"},
            "retry": {"backoff": "1s", "max_attempts": 2},
            **RECORDS,
            "args": {
                "folder": "${run.dir}/saved",
                "record": str(self.record),
                **({} if outside else {"what": cell.what, "who": cell.who, "when": cell.when}),
            },
        }
        python = {"command": [sys.executable, "grid.py"]} if cell.launcher == "none" else {"script": "grid.py"}
        (self.project / "job.yaml").write_text(json.dumps({**job, **python}, indent=1))

    def call(self, *words: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("hpc-launch")
        return subprocess.run(
            [str(program), *words],
            cwd=self.project,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def steps(self) -> list[tuple[int, int, int]]:
        """Attempt, rank and step of each step that was made."""
        if not self.record.exists():
            return []
        rows = [line.split() for line in self.record.read_text().splitlines()]
        return [(int(one), int(two), int(three)) for one, two, three in (row for row in rows if len(row) == 3)]

    def strike(self) -> None:
        """Send the signal of a cell to a process beside the ranks, once the training is there."""
        wanted = 1 if self.cell.when == "first step" else 3
        end = time.monotonic() + 60
        while not any(step >= wanted for _, _, step in self.steps()):
            if time.monotonic() > end:
                raise TimeoutError("the training did not come so far")
            time.sleep(0.05)
        if not (found := self.processes(self.cell.who)):
            raise ProcessLookupError(f"no {self.cell.who} runs")
        for pid in found:
            os.kill(pid, getattr(signal, f"SIG{self.cell.value}"))

    def processes(self, who: str) -> list[int]:
        """The processes of this run that are the launcher, the watcher or the job's script."""
        is_it: dict[str, Callable[[str], bool]] = {
            "launcher": lambda text: "torch.distributed.run" in text or "torchrun" in text or "deepspeed" in text,
            "watcher": lambda text: "agent.pyz" in text and " watch" in text,
            "script": lambda text: "script.sh" in text and text.split(" ")[0].endswith("bash"),
        }
        found = [one.number for one in processes(str(self.home)) if is_it[who](one.command)]
        return sorted(found)[:1] if who != "watcher" else found


def play(cell: Cell) -> Outcome:
    """One cell from submission to the diagnosis of its first attempt."""
    began, outcome = time.monotonic(), Outcome(cell.key, cell.open)
    home = Path(tempfile.mkdtemp(prefix="hpcl-grid-"))
    place = Place(home, cell)
    try:
        done = place.call("submit", "job.yaml", "--json")
        if done.returncode:
            raise RuntimeError(f"refused: {done.stderr.strip()}")
        if cell.who in OUTSIDE:
            place.strike()
        status = _follow(place)
        told = place.call("why", "@last", "--attempt", "1", "--json")
        why = json.loads(told.stdout) if told.stdout.startswith("{") else {}
        _judge(outcome, cell, status, why, place)
    except Exception as error:  # a cell that breaks is a cell that failed
        outcome.wrong.append(f"{type(error).__name__}: {error}")
    outcome.took_s = round(time.monotonic() - began, 1)
    if outcome.wrong:
        kept = PLACE / "grid" / cell.key.replace("/", "+").replace(":", "-")
        shutil.rmtree(kept, ignore_errors=True)
        pipes = shutil.ignore_patterns("*.pipe")
        shutil.copytree(home, kept, symlinks=True, ignore_dangling_symlinks=True, ignore=pipes)
    place.call("cancel", "@last", seconds=60)
    shutil.rmtree(home, ignore_errors=True)
    return outcome


def _follow(place: Place) -> dict[str, Any]:
    """Watch the run to its end, as somebody would."""
    with suppress(subprocess.TimeoutExpired):
        place.call("watch", "@last", seconds=LONGEST_S)
    status: dict[str, Any] = json.loads(place.call("status", "@last", "--json").stdout)
    return status


def _judge(outcome: Outcome, cell: Cell, status: dict[str, Any], why: dict[str, Any], place: Place) -> None:
    right: Answer = answer(cell)
    outcome.state = status["state"]
    outcome.failure_class, outcome.cause = str(why.get("class")), str(why.get("cause"))
    outcome.verdict = str(why.get("verdict"))
    outcome.rank = (why.get("first_failure") or {}).get("rank")
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
    if outcome.state in {"RUNNING", "PENDING", "RETRYING", "STARTING", "ENDING"}:
        outcome.wrong.append(f"still {outcome.state}")


def prove(rounds: Rounds) -> int:
    """Play the first cells of a fixed order that have not succeeded yet, or those whose key holds one of the names."""
    every = {cell.key: cell for cell in cells()}
    names, rounds.names = rounds.names, []
    named = [key for key in every if any(name in key for name in names)]
    wanted = named or list(every)[: CELLS if rounds.count is None else rounds.count]
    code = rounds.run("grid", named or rounds.left("grid", wanted), lambda key: asdict(play(every[key])))
    found = rounds.state.data.get("grid", {})
    for name, half in (("open", True), ("closed", False)):
        part = [found[key] for key in wanted if key in found and every[key].open is half]
        print(f"{name} half: {sum(one['ok'] for one in part)} of {len(part)} right")
    return code
