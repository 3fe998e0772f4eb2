"""Races of busy machines, simulated: a watcher that is late, codes that another one read first, words that are lost."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass, field

from hpc_launch.diagnose.diagnosis import Diagnosis
from hpc_launch.diagnose.evidence import AgentNote, NodeExit
from tests.diagnose.logs import why_run
from tests.prove.grid.cells import EXITS, SIGNALS, Cell
from tests.prove.grid.oracle import answer

LAUNCHERS = {"torchrun": 0.1, "deepspeed": 1.0, "srun": 0.05}
"""Seconds until each sees that a process ended."""
OWN = {
    "raise:ValueError": "ValueError: expected 4 columns, got 3",
    "raise:KeyError": "KeyError: 'hidden_size'",
    "peer:ECONNRESET": "ConnectionResetError: [Errno 104] Connection reset by peer",
    "peer:ETIMEDOUT": "TimeoutError: [Errno 110] Connection timed out",
    "storage:EIO": "OSError: [Errno 5] Input/output error: '/scratch/shard.bin'",
}
LOST = ("ConnectionResetError: Connection closed by peer", "BrokenPipeError: [Errno 32] Broken pipe")
WHATS = (*(f"exit:{code}" for code in EXITS), *(f"signal:{name}" for name in SIGNALS), *OWN)
TASK_ENDS = {number: signal.strsignal(number) for number in range(1, 32)}


@dataclass
class End:
    """How and when a rank ended."""

    at: float
    code: int
    raised: float | None = None
    words: str = ""
    by_launcher: bool = False

    @property
    def folded(self) -> int:
        return self.code if self.code >= 0 else 128 - self.code


@dataclass
class Job:
    """A job in which a rank fails, and what is seen of it."""

    cell: Cell
    ranks: int
    dice: random.Random
    ends: dict[int, End] = field(default_factory=dict)

    def play(self) -> None:
        """The failure, what the others lose, and the launcher that ends those that are left."""
        failing = {"first": [0], "other": [1], "all": range(self.ranks)}[self.cell.who]
        for rank in failing:
            self.ends[rank] = self.failure(1e9 + self.dice.uniform(0, 0.03 * (len(failing) > 1)))
        for rank in range(self.ranks) if self.cell.when == "middle" else ():
            if rank not in self.ends:  # each rank is connected to the first one
                lost_at = min(end.at for other, end in self.ends.items() if rank == 0 or other == 0)
                self.ends[rank] = self.exception(lost_at + self.dice.uniform(0.0002, 0.006), self.dice.choice(LOST))
        looks = min(end.at for end in self.ends.values()) + self.dice.uniform(0.001, LAUNCHERS[self.cell.launcher])
        for rank in range(self.ranks):
            end, killed = self.ends.get(rank), looks + self.dice.uniform(0.001, 0.03)
            if end is None or end.at > killed:
                before = end is not None and end.raised is not None and end.raised < killed
                self.ends[rank] = End(killed, -signal.SIGTERM, end.raised if before and end else None, "", True)

    def failure(self, at: float) -> End:
        kind, value = self.cell.kind, self.cell.value
        if kind == "exit":
            return End(at + self.dice.uniform(0.0001, 0.004), int(value))
        if kind == "signal":
            return End(at + self.dice.uniform(0.0001, 0.004), -signal.Signals[f"SIG{value}"])
        return self.exception(at, OWN[self.cell.what])

    def exception(self, at: float, words: str) -> End:
        return End(at + self.dice.uniform(0.02, 0.15), 1, at, words)

    def notes(self) -> list[AgentNote]:
        """What the watchers saw: some ranks too late to read their codes, or several at once."""
        found = []
        for node in {self.node(rank) for rank in self.ends}:
            left = sorted((end.at, rank) for rank, end in self.ends.items() if self.node(rank) == node)
            while left:
                late = self.dice.expovariate(20) if self.dice.random() < 0.3 else 0.0
                now = left[0][0] + self.dice.uniform(0.0005, 0.005) + late
                for at, rank in [one for one in left if one[0] <= now]:
                    keeps = LAUNCHERS["torchrun"] if self.cell.launcher == "torchrun" else 0.003
                    found.append(self.note(rank, now, read=now < at + self.dice.uniform(0, keeps)))
                left = [one for one in left if one[0] > now]
        return found

    def note(self, rank: int, now: float, *, read: bool) -> AgentNote:
        end = self.ends[rank]
        kind, node = "death" if read and end.code else "spared", f"n{self.node(rank) + 1}"
        number, code = (-end.code, None) if end.code < 0 else (None, end.code)
        raised = None if end.raised is None else round(end.raised, 3)
        file, how = f"agent/node-{self.node(rank)}.jsonl", (number, code) if read else (None, None)
        return AgentNote(kind, file, "", node, rank, round(now, 3), *how, oom_kill=False, raised=raised)

    def node(self, rank: int) -> int:
        return rank % 2 if self.cell.launcher == "srun" else 0

    def diagnosis(self) -> Diagnosis:
        """With the logs and the files that the launcher leaves."""
        srun, logs = self.cell.launcher == "srun", {"batch.log": "", "node-0.log": ""}
        order = sorted(self.ends.items(), key=lambda one: one[1].at)
        exits = []
        for rank, end in order:
            words = f"[rank{rank}]: {end.words}\n" if end.words else ""
            if srun:
                how = TASK_ENDS[-end.code] if end.code < 0 else f"Exited with exit code {end.code}"
                logs["batch.log"] += f"srun: error: n{self.node(rank) + 1}: task {rank}: {how}\n"
            logs["node-0.log"] += words
            if srun or (self.cell.launcher == "deepspeed" and not end.by_launcher):
                node, noted = f"n{self.node(rank) + 1}", end.at + self.dice.uniform(0.001, 0.006)
                exits.append(NodeExit(node, end.folded, f"logs/rank-{rank}.exit", noted, rank))
        if self.cell.launcher == "torchrun":
            for rank, end in order:
                logs["node-0.log"] += f"  time      : 2026-11-26_06:54:57\n  rank      : {rank} (local_rank: {rank})\n"
                logs["node-0.log"] += f"  exitcode  : {end.code} (pid: {rank + 9})\n"
            logs["node-0.log"] += "=" * 60 + "\n"
        logs["batch.log"] += "[hpc-launch 2026-11-26 06:54:59] the step ended with exit code 1\n"
        nodes = ("n1", "n2") if srun else ("n1",)
        return why_run("FAILED", 1, logs, notes=tuple(self.notes()), node_exits=tuple(exits), nodes=nodes)


def test_the_first_failure_is_found_whatever_the_watchers_miss() -> None:
    wrong = []
    for seed in range(400):
        dice = random.Random(seed)
        who, when = dice.choice(("first", "other", "all")), dice.choice(("imports", "middle"))
        cell = Cell(dice.choice(WHATS), who, when, dice.choice(list(LAUNCHERS)))
        job = Job(cell, dice.choice((2, 2, 4)), dice)
        job.play()
        found, right = job.diagnosis(), answer(cell)
        named = right.rank is None or found.first_failure.rank == right.rank
        if found.failure_class not in right.classes or not named:
            wrong.append((seed, cell.key, found.failure_class, found.first_failure.rank))
    assert len(wrong) <= 4, wrong  # where a program ends with 143, nothing tells it from what a launcher does
