"""The order of the measurements of `preflight: full`: which nodes measure what, and which pairs. Pure.

First each node measures itself. Then pairs of nodes measure an all-reduce: who fails in the first round meets a node
that has passed in the second, so that the bad node is named and not its partner, as in DLRover's node check. A third
round is for those who have met one node only: with an odd number of nodes, or where more pairs failed than passed. At
the end there is one all-reduce over all nodes that are left. Standard library of Python 3.6 or later, for
judge.py.
"""

import statistics
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from hpc_launch.agent.check_compare import LARGE, Results, fail, values

MEASUREMENT, PAIR, ALL = "measurement", "pair %d", "all-reduce of all nodes"
PAIRS, LINK = "pairs", "link"
"""The checks that follow from the rounds: of a node, and of two nodes that both work with others."""
NETWORK = "nccl network"
"""A node that fails this check is still a partner for others."""
MEASURE_S, PAIR_S, ALL_S, ALL_PER_NODE_S = 25.0, 10.0, 10.0, 0.02
"""Limits of the tasks: 30 s for a node's measurement, and 30 s for two rounds of pairs and all nodes."""
ROUNDS = 3
THREE = ((0, 1), (0, 2), (1, 2))
"""Three nodes: every pair, for there is no second pair to compare the first with."""
SLOW_PAIR, SLOW_PAIR_CPU = 0.6, 0.2
"""A pair below this share of the median is slow: over NCCL, and over TCP, which other traffic disturbs."""
Task = Dict[str, Any]


class Outcome(NamedTuple):
    """What a pair has measured."""

    nodes: Tuple[str, str]
    speed: Optional[float]
    """GB/s; None if the all-reduce failed."""
    good: bool
    text: str


class Rounds:
    """The measurements of a job's nodes."""

    def __init__(self, gpus: int) -> None:
        self.share = SLOW_PAIR if gpus else SLOW_PAIR_CPU
        self.measured = self.done = self.three = False
        self.pairs: List[List[Tuple[str, str]]] = []
        """The pairs of each round."""

    def next(self, found: Results, able: List[str], places: Dict[str, Tuple[str, int]]) -> Dict[str, Task]:
        """The next tasks by node: of the nodes that are fit and have PyTorch. Empty when all is measured."""
        if not self.measured:
            self.measured = True
            return {name: {"task": MEASUREMENT, "limit": MEASURE_S} for name in able}
        pairs = self.next_pairs(found, able) if len(self.pairs) < ROUNDS else []
        if pairs:
            self.pairs.append(pairs)
            tasks: Dict[str, Task] = {}
            for pair in pairs:
                tasks.update(group(PAIR % len(self.pairs), pair, places, PAIR_S))
            return tasks
        if self.done or len(able) < 3:  # two nodes have measured all of them
            return {}
        self.done = True
        return group(ALL, tuple(able), places, ALL_S + ALL_PER_NODE_S * len(able))

    def next_pairs(self, found: Results, able: List[str]) -> List[Tuple[str, str]]:
        """The pairs of the next round; none if it is clear who is bad."""
        self.three = len(able) == 3 and (self.three or not self.pairs)
        if self.three:
            first, second = THREE[len(self.pairs)]
            return [(able[first], able[second])]
        if not self.pairs:
            return list(zip(able[::2], able[1::2]))
        met, failed, proven = self.history(found)
        # One of each failed pair first: where it is bad, that explains the failure of the other.
        suspects = [pair[at] for at in (0, 1) for pairs in self.pairs for pair in pairs]
        suspects = [name for name in dict.fromkeys(suspects) if failed.get(name) == 1 and name not in proven]
        open_ones = [name for name in suspects + [one for one in able if one not in met] if name in able]
        partners = [name for name in able if name in proven]
        if not partners:  # no pair has passed: mix them
            partners = open_ones[1:]
        pairs: List[Tuple[str, str]] = []
        for name in open_ones:
            other = next((one for one in partners if one != name and one not in met.get(name, ())), None)
            if other is not None and not any(name in pair for pair in pairs):
                partners = [one for one in partners if one not in (other, name)]
                pairs.append((name, other))
        return pairs

    def outcomes(self, found: Results) -> List[Outcome]:
        """What the pairs have measured; those in which a node could not measure, or ended, are left out."""
        known = []  # type: List[Tuple[Tuple[str, str], Optional[float], str]]
        for number, pairs in enumerate(self.pairs, 1):
            check = PAIR % number
            speeds = values(found, check)
            for pair in pairs:
                results = [found.get(name, {}).get(check, {}) for name in pair]
                texts = [str(one.get("text")) for one in results if one.get("ok") is False]
                if texts:
                    known.append((pair, None, texts[0]))
                elif all(name in speeds for name in pair):
                    known.append((pair, min(speeds[name] for name in pair), ""))
        usual = usual_of([speed for _, speed, _ in known if speed is not None])
        return [
            Outcome(pair, None, False, text)
            if speed is None
            else Outcome(pair, speed, speed >= self.share * usual, "%.3g GB/s" % speed)
            for pair, speed, text in known
        ]

    def history(self, found: Results) -> Tuple[Dict[str, List[str]], Dict[str, int], Dict[str, None]]:
        """Whom each node has met, how often it failed or was slow, and who passed with anybody."""
        met: Dict[str, List[str]] = {}
        failed: Dict[str, int] = {}
        proven: Dict[str, None] = {}
        for one in self.outcomes(found):
            for name, other in (one.nodes, one.nodes[::-1]):
                met.setdefault(name, []).append(other)
                if one.good:
                    proven[name] = None
                else:
                    failed[name] = failed.get(name, 0) + 1
        return met, failed, proven

    def fold(self, found: Results) -> None:
        """Replace the results of the pairs by what follows for each node."""
        outcomes = self.outcomes(found)
        met, failed, proven = self.history(found)
        usual = usual_of([one.speed for one in outcomes if one.speed is not None])
        for name, others in met.items():
            bad = [(other, one.text) for one in outcomes if not one.good for other in partner(one.nodes, name)]
            text = "all-reduce %s" % "; ".join("with %s: %s" % pair for pair in bad)
            text += "; the median of the pairs is %.3g GB/s" % usual if usual else ""
            if name in proven:
                found[name][PAIRS] = {"ok": True, "text": "", "value": None}
                if any(other in proven for other, _ in bad):
                    text = "%s: %s, although both work with other nodes" % (name, text)
                    found[name][LINK] = {"ok": False, "text": text, "value": None}
            else:
                certain = not proven or (failed[name] > 1 and any(one in proven for one in others))
                found[name][PAIRS] = {"ok": False if certain else None, "text": text, "value": None}
        for results in found.values():
            for number in range(1, ROUNDS + 1):
                results.pop(PAIR % number, None)
            results.pop(MEASUREMENT, None)
        ends = [results for results in found.values() if ALL in results]
        if any(results[ALL].get("ok") is False for results in ends):  # all wait for the one that fails
            for results in ends:
                results[ALL] = dict(results[ALL], ok=False if results[ALL].get("ok") is False else None)


def partner(nodes: Tuple[str, str], name: str) -> List[str]:
    """The other node of a pair, if `name` belongs to it."""
    return [other for one, other in (nodes, nodes[::-1]) if one == name]


def usual_of(speeds: List[float]) -> float:
    """What a pair should reach: the median, or the best of a few; 0.0 if there is nothing to compare."""
    if len(speeds) < 2:
        return 0.0
    return max(speeds) if len(speeds) <= 3 else statistics.median_high(speeds)


def group(task: str, names: Tuple[str, ...], places: Dict[str, Tuple[str, int]], limit: float) -> Dict[str, Task]:
    """The same task for some nodes, which meet at the first of them."""
    address, port = places[names[0]]
    common = {"task": task, "limit": limit, "nodes": len(names), "address": address, "port": port}
    return {name: dict(common, number=number) for number, name in enumerate(names)}


SHARES = {
    "gpu matrix product": 0.8,
    "gpu memory bandwidth": 0.8,
    "gpu host bandwidth": 0.5,
    "gpu all-reduce": 0.6,
    "cpu matrix product": 0.4,
    "cpu memory bandwidth": 0.4,
    "cpu all-reduce": 0.2,
}
"""A GPU, or a process on CPUs, below this share of the median is slow.

Healthy GPUs of one model differ by a few percent. The bandwidth to the host depends on the NUMA node, and what else
runs on a machine changes that of CPUs and of TCP.
"""


def numbers(value: Any) -> List[float]:
    """The values of the processes of a node; nothing if they are no numbers."""
    ones = value if isinstance(value, list) else [value]
    good = [one for one in ones if isinstance(one, (int, float)) and not isinstance(one, bool) and 0 <= one < LARGE]
    return [float(one) for one in good] if len(good) == len(ones) else []


def figure(check: str, value: float) -> str:
    """A value with its unit."""
    if not check.endswith("product"):
        return "%.3g GB/s" % value
    return "%.3g TFLOP/s" % (value / 1000) if value >= 1000 else "%.3g GFLOP/s" % value


def compare_measured(found: Results) -> Dict[str, str]:
    """Fail nodes with a GPU that is far slower than the median; returns the medians, as texts, by check."""
    medians = {}
    for check, share in SHARES.items():
        by_node = {node: numbers(results.get(check, {}).get("value")) for node, results in found.items()}
        every = [one for ones in by_node.values() for one in ones]
        if not every:
            continue
        usual = statistics.median_high(every)
        medians[check] = figure(check, usual)
        for node, ones in by_node.items():
            if ones and min(ones) < share * usual:
                who = "%s %d" % ("GPU" if check.startswith("gpu") else "process", ones.index(min(ones)))
                words = (check, figure(check, min(ones)), who, figure(check, usual))
                fail(found, node, check, "%s: %s on %s; the median of the job is %s" % words)
    pairs = [one for number in range(1, ROUNDS + 1) for one in values(found, PAIR % number).values()]
    for name, speeds in (("all-reduce of pairs", pairs), (ALL, list(values(found, ALL).values()))):
        if speeds:
            medians[name] = figure(name, statistics.median_high(speeds))
    return medians
