"""Find the ranks of a hanging training that the others wait for, by what the kernel says of them and by their stacks.

Two notations of stacks are read: that of `py-spy dump`, and that of Python's faulthandler, which the interpreter itself
prints into the log at a fatal signal. Only the main thread counts; with faulthandler it is the one that got the signal.
A rank that is stopped prints none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from hpc_launch.diagnose.log_line import line_pattern

_SPY = re.compile(r"^\s+(?P<call>[^()]+) \((?P<file>[^():]+):(?P<line>\d{1,9})\)")
_FAULT = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d{1,9}) in (?P<call>\S+)')
_THREAD = re.compile(r'^(?:(?P<main>Current thread 0x|Thread \d+ .*"MainThread")|(?:Thread \d+ |Thread 0x))')
_RANK = re.compile(r"^\[(?:rank)?(?P<rank>\d{1,7})\]: ?(?P<rest>.*)")
_WAITS = re.compile(r"torch/distributed/|torch/autograd/graph\.py|deepspeed/comm/|torch/cuda/__init__\.py")
_NEAR = 6
"""Maximum number of library frames between a collective and its caller."""


class Frame(Struct, frozen=True):
    """One call on a stack."""

    file: str
    line: int
    call: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.call}"


_FACTS = re.compile(r"^(state|waits in the kernel at|polls): (\w+)", re.MULTILINE)
_STOPPED = frozenset("TtDZ")
"""States of proc(5) in which a process does nothing: stopped, traced, in a call that cannot be interrupted, dead."""
_FOR_OTHERS = line_pattern("for_others")
"""Functions of Linux in which a process waits for data, for a connection, or for a thread of its own that does."""


class Stand(Struct, frozen=True):
    """Where a rank is, in a training that hangs: its frames, its state as in proc(5), and what it waits in there."""

    frames: tuple[Frame, ...] = ()
    state: str = ""
    kernel: str = ""
    polls: bool = False
    """Whether it wakes up again and again, as one that looks whether another is there."""

    def __str__(self) -> str:
        if self.state in _STOPPED:
            return f"was stopped (state {self.state})"
        return f"stood at {self.frames[0] if self.frames else self.kernel or 'a place unknown'}"


def stand(text: str) -> Stand:
    """What the watcher wrote about a rank."""
    facts = dict(_FACTS.findall(text[:1000]))
    kernel = facts.get("waits in the kernel at", "")
    return Stand(stack(text.splitlines()), facts.get("state", ""), kernel, "polls" in facts)


def late(stands: Mapping[int, Stand], *, some_left: bool) -> dict[int, Stand]:
    """The ranks that the others wait for; empty where that cannot be told.

    `some_left`: other ranks ended well before, so that those which are still there are late.
    """
    stopped = {rank: one for rank, one in stands.items() if one.state in _STOPPED}
    elsewhere = {
        rank: one for rank, one in stands.items() if not (_waits(one.frames) or _FOR_OTHERS.search(one.kernel))
    }
    still = {rank: one for rank, one in elsewhere.items() if not one.polls}
    for found in (stopped, elsewhere, still):
        if found and (len(found) < len(stands) or some_left or (found is stopped and len(stands) == 1)):
            return found
    odd = stands if some_left else not_arrived({rank: one.frames for rank, one in stands.items()})
    return {rank: stands[rank] for rank in odd}


def _waits(frames: tuple[Frame, ...]) -> bool:
    return any(_WAITS.search(frame.file) for frame in frames[:_NEAR])


def stack(lines: Iterable[str]) -> tuple[Frame, ...]:
    """The main thread's frames, the innermost first; empty where there are none."""
    frames: list[Frame] = []
    inside = False
    for line in lines:
        thread = _THREAD.match(line)
        if thread:
            if frames:
                break
            inside = thread["main"] is not None
        elif inside and (found := _SPY.match(line) or _FAULT.match(line)):
            frames.append(Frame(found["file"].strip(), int(found["line"]), found["call"].strip()))
        elif frames and not line.strip():
            break
    return tuple(frames)


def stacks_in_log(lines: Iterable[str]) -> dict[int, tuple[Frame, ...]]:
    """The stacks that faulthandler printed into a log whose lines begin with `[rankR]:`, by rank."""
    by_rank: dict[int, list[str]] = {}
    for line in lines:
        found = _RANK.match(line)
        if found and (int(found["rank"]) in by_rank or found["rest"].startswith("Fatal Python error: Aborted")):
            by_rank.setdefault(int(found["rank"]), []).append(found["rest"])
    return {rank: frames for rank, texts in by_rank.items() if (frames := stack(texts))}


def not_arrived(stacks: Mapping[int, tuple[Frame, ...]]) -> dict[int, Frame]:
    """The ranks that are elsewhere while others wait for each other, and the place of each.

    Empty where all wait, or where none waits and no place holds more than half of them: then there is no answer.
    """
    known = {rank: frames for rank, frames in stacks.items() if frames}
    waiting = {rank for rank, frames in known.items() if _waits(frames)}
    if waiting and len(waiting) < len(known):
        return {rank: known[rank][0] for rank in sorted(set(known) - waiting)}
    places = Counter(frames[0] for frames in known.values())
    if waiting or len(places) < 2:
        return {}
    place, ranks = places.most_common(1)[0]
    if ranks * 2 <= len(known):
        return {}
    return {rank: known[rank][0] for rank in sorted(known) if known[rank][0] != place}
