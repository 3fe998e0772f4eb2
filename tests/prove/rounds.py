"""What the parts of the proof share: which rounds are left, rounds side by side, and the processes of a run."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster import Cluster
from tests.prove.state import State

Play = Callable[[str], dict[str, Any]]
"""Plays a round by its key: what is wrong (`wrong`), and what else is to be kept."""


@dataclass
class Rounds:
    """What is to be run of a part: the rounds that are named, or those that have not succeeded yet."""

    state: State
    names: list[str] = field(default_factory=list)
    count: int | None = None
    workers: int = 3
    again: bool = False
    system: str | None = None
    """The Debian whose Slurm the matrix runs on."""

    def done(self, group: str) -> dict[str, Any]:
        """The outcomes that are known and count."""
        found: dict[str, Any] = {} if self.again else self.state.data.get(group, {})
        return found

    def numbers(self, group: str, usual: int) -> list[str]:
        """The numbers of the rounds that are left, of `usual` if nobody asked for another number."""
        return self.left(group, map(str, range(usual if self.count is None else self.count)))

    def left(self, group: str, keys: Iterable[str]) -> list[str]:
        """The keys of the rounds that are left."""
        done = self.done(group)
        return [key for key in self.names or keys if self.names or not done.get(key, {}).get("ok")]

    def run(self, group: str, left: list[str], play: Play) -> int:
        """All rounds, side by side; 1 if one went wrong."""
        with ThreadPoolExecutor(self.workers) as pool:
            good = sum(pool.map(partial(self.keep, group, play), left))
        print(f"{good} of {len(left)} rounds as they should be")
        return 0 if good == len(left) else 1

    def keep(self, group: str, play: Play, key: str) -> bool:
        """Play a round, whatever happens in it, and put the outcome on file."""
        began = time.monotonic()
        try:
            facts = play(key)
        except Exception as error:  # a round that breaks is one that failed
            facts = {"wrong": [f"{type(error).__name__}: {error}"]}
        good = not facts["wrong"]
        self.state.keep(group, key, {"ok": good, **facts})
        print(f"{'ok  ' if good else 'FAIL'} {key} {time.monotonic() - began:.0f} s: {facts}", flush=True)
        return good


def counted(words: Iterable[str]) -> str:
    """How often each word is there, the most frequent first."""
    counts = sorted(Counter(words).items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} {word}" for word, count in counts)


def gone(cluster: Cluster, name: str) -> bool:
    """Whether no job of a run is left in the queue, by the name of the run's job file."""
    jobs = cluster.jobs()
    return jobs is not None and not any(f" {name}." in line for line in jobs)


class Process(NamedTuple):
    """A process on any node."""

    number: int
    command: str
    frozen: bool


def processes(mark: str) -> Iterator[Process]:
    """The processes, on whichever node, with this text in their command or their environment."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number, command = (
                int(entry.name),
                (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("u8", "replace"),
            )
            if mark in command + (entry / "environ").read_bytes().decode("u8", "replace"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                yield Process(number, command, state == "T")


def thaw(mark: str) -> int:
    """Wake the frozen processes with this text; how many there were."""
    frozen = [one.number for one in processes(mark) if one.frozen]
    for number in frozen:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGCONT)
    return len(frozen)
