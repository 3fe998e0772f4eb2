"""What the nodes have reported to judge.py, and how long it waits for what is missing.

A node reports in lines of JSON: the names of the checks that it begins, then their results as they come. A check that
half of the nodes have passed is waited for LIMITS seconds on the others, or FACTOR times as long as it took there.
Standard library of Python 3.6 or later.
"""

import json
from typing import Any, Dict, List, Optional, Set, Tuple

from hpc_launch.agent.check_compare import Results

BEAT_PER_NODE_S = 0.0005
"""How often a node says that it is alive: 2000 lines in a second, which takes a tenth of a CPU."""
FIRST_S = 120.0
"""How long half of the nodes may take to connect, and then to answer. A large job takes longer: see PER_NODE_S."""
PER_NODE_S = 0.02
LAG_S, INSIDE_LAG_S = 12.0, 30.0
"""How long the others are waited for once half of the nodes have connected, at least; inside an image, whose start has
a limit of its own."""
STEP_S = 4.4
"""A little more than a check itself waits for a tool or a mount, and within the limit of 5 s."""
LIMITS = {
    "image": 14.5,
    "software": 14.5,
    "gpu compute": 14.5,
    "gpu processes": 65.0,
    "gpu errors": 9.0,
    "gpu diagnosis": 30.0,
    "measurements": 14.5,
    "ports between nodes": 17.5,
}
TASK_S = 6.0
"""How much longer than its limit a task may take: the node itself ends what hangs."""
FACTOR = 6.0
SILENT_S, BEATS = 3.5, 3
"""How long a node may say nothing in the midst of its checks, besides this many beats of a large job: at least FACTOR
times as long as the longest silence of the others, which share the load of a busy machine."""
LOCAL = {"cpu", "memory", "start"}
"""Checks that depend on nothing outside the node: if one is missing, the node has stopped as a whole."""


class Node:
    """What one node has reported."""

    def __init__(self) -> None:
        self.connected: Optional[float] = None
        self.heard = self.gap = 0.0
        """When it last sent a line, and its longest silence so far."""
        self.begun: Set[str] = set()
        self.results: Dict[str, Dict[str, Any]] = {}
        self.place: Optional[Tuple[str, int]] = None
        """Where other nodes reach this one, while it waits for a task of `preflight: full`."""
        self.until: Dict[str, float] = {}
        """When a task has to be done."""
        self.done = False


class Reports:
    """What the nodes have reported, by the seconds since the judge began."""

    def __init__(self, names: List[str], what: str = "") -> None:
        self.answer, self.what = (what + " " if what else "") + "answer", what + ": " if what else ""
        self.silent_s = SILENT_S + BEATS * BEAT_PER_NODE_S * len(names)
        self.lag = INSIDE_LAG_S if what else LAG_S
        self.nodes = {name: Node() for name in names}
        self.open = set(names)
        """Nodes that are still waited for."""
        self.half = (len(self.nodes) + 1) // 2
        self.patience = FIRST_S + PER_NODE_S * len(self.nodes)
        self.connected: List[float] = []
        self.answers = 0
        """How many results there are."""
        self.passed: Dict[str, List[float]] = {}

    def keep(self, data: bytes, now: float) -> Optional[str]:
        """Keep a line and return the name of its node; a line that is not a node's report is ignored."""
        try:
            words = json.loads(data.decode())
            name = words["node"]
            node = self.nodes[name]
            results = [one for one in words.get("results", ()) if isinstance(one["check"], str)]
            begun = [one for one in words.get("begun", ()) if isinstance(one, str)]
            place = [kind(one) for kind, one in zip((str, int), words.get("place", ()))]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None
        if node.connected is None:
            node.connected = now
            self.connected.append(now)
        node.gap = max(node.gap, now - node.heard) if node.begun and not node.done else node.gap
        node.heard = now
        node.begun.update(begun)
        if len(place) == 2:
            node.place = (place[0], place[1])
        if words.get("clock_ahead_s") is not None:
            results.append({"check": "clock", "ok": True, "text": "", "value": words["clock_ahead_s"]})
        for one in results:
            check = one["check"]
            if check in node.results or len(node.results) > 1000:
                continue  # a file is read again as a whole, and a late result does not count
            self.answers += 1
            node.results[check] = {key: one.get(key) for key in ("ok", "text", "value")}
            if one.get("ok") is True:
                self.passed.setdefault(check, []).append(now)
        if words.get("done") is True and not node.done:
            owed = sorted(node.begun - set(node.results))
            self.finish(name, now, "the check ended early, during: %s" % ", ".join(owed) if owed else "")
        return str(name)

    def assign(self, name: str, task: str, until: float) -> None:
        """A node has been asked to measure something."""
        node = self.nodes[name]
        node.place = None
        node.begun.add(task)
        node.until[task] = until + TASK_S

    def finish(self, name: str, now: float, text: str = "") -> None:
        """Wait no longer for a node: it has reported everything, or `text` says why it will not."""
        node = self.nodes[name]
        node.done = True
        self.open.discard(name)
        self.answers += 1
        if self.answer not in node.results:
            node.results[self.answer] = {"ok": not text, "text": self.what + text, "value": None}
            if not text:
                self.passed.setdefault(self.answer, []).append(now)

    def abandon(self, name: str, now: float, text: str) -> None:
        """Wait no longer for a node, without blaming it."""
        self.nodes[name].results.setdefault(self.answer, {"ok": None, "text": self.what + text, "value": None})
        self.finish(name, now)

    def look(self, now: float, over: bool) -> None:
        """Give up what is overdue: all that is missing, if it is `over`."""
        for name in list(self.open):
            node = self.nodes[name]
            if node.connected is None:
                if over or now > self.connects_until():
                    self.finish(name, now, "did not connect within %.0f s" % now)
                continue
            owed = sorted(node.begun - set(node.results))
            late = [check for check in owed if over or now > self.until(check, node)]
            seconds = now - node.connected
            stalled = not owed and node.place is None and now > node.heard + STEP_S
            if over or LOCAL & set(late) or set(node.until) & set(late) or stalled or self.is_silent(node, now):
                during = ", ".join(late or owed) or "the end of its checks"
                self.finish(name, now, "stopped answering within %.0f s, during: %s" % (seconds, during))
                continue
            if late:  # what hangs holds up the rest
                text = "%s: no answer within %.0f s" % (", ".join(late), seconds)
                node.results[late[0]] = {"ok": False, "text": text, "value": None}
                self.finish(name, now)

    def is_silent(self, node: Node, now: float) -> bool:
        """Whether a node says nothing in the midst of its checks, although the others do or did: it is frozen, or its
        link is cut. Not in a measurement, of which only the result is reported."""
        if not node.begun or node.until or node.place is not None or now - node.heard < self.silent_s:
            return False
        others = [one for one in self.nodes.values() if one is not node and one.begun]
        gaps = sorted(one.gap for one in others)
        alive = sum(one.done or now - one.heard < self.silent_s / 2 for one in others)
        return alive >= self.half and now - node.heard > FACTOR * gaps[len(gaps) // 2]

    def connects_until(self) -> float:
        """Until when the nodes may connect."""
        if len(self.connected) < self.half:
            return self.patience
        return max(2 * self.connected[self.half - 1], self.connected[self.half - 1] + self.lag)

    def until(self, check: str, node: Node) -> float:
        """Until when a node may answer a check."""
        if check in node.until:
            return node.until[check]
        began, passed = node.connected or 0.0, self.passed.get(check, ())
        if len(passed) < self.half or len(self.nodes) == 1:
            return began + 2 * self.patience  # the time limit of the check itself ends it
        limit: float = max(LIMITS.get(check, STEP_S), FACTOR * (passed[self.half - 1] - self.connected[0]))
        return began + limit

    def results(self) -> Results:
        """A copy of all results."""
        return {name: dict(node.results) for name, node in self.nodes.items()}
