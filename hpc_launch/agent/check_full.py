"""The measurements of `preflight: full`: what a node measures, which nodes measure together, and what follows from it.

The judge asks all nodes for one step after the other: a measurement of each node, an all-reduce of each with two
others, and one of all. measure.py carries them out with the training's own PyTorch.
"""

import json
import signal
import socket
import subprocess
from typing import Any, Dict, List, Tuple

from hpc_launch.agent import program
from hpc_launch.agent.check_compare import Results, fail, usual_of, values
from hpc_launch.agent.check_host import Result, result, unknown
from hpc_launch.agent.job_processes import send

IMPORT = "measurements"
"""The check that PyTorch could be imported: without it, a node takes no part in the measurements."""
NETWORK = "nccl network"
"""A node that fails this check is still a partner for others."""
MEASUREMENT, PAIR, ALL = "measurement", "pair %d", "all-reduce of all nodes"
PAIRS, LINK = "pairs", "link"
"""The checks that follow from the pairs: of a node, and of two nodes that both work with others."""
STEPS = 5
"""So many at most: each has a port of its own."""
MEASURE_S, PAIR_S, ALL_S, ALL_PER_NODE_S = 25.0, 10.0, 10.0, 0.02
"""Limits of the steps: 30 s for a node's measurement, and 30 s for three rounds of pairs."""
SPARE_S = 2.0
"""How much longer than its limit a step may take until measure.py itself counts as hanging."""
SLOW_PAIR, SLOW_PAIR_CPU = 0.6, 0.2
"""A pair below this share of the median is slow: over NCCL, and over TCP, which other traffic disturbs."""
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
Ranks = List[Dict[str, Any]]


class Measuring:
    """The program that measures. Only the process of a check waits for its answers: it has a limit."""

    def __init__(self, python: str, gpus: int, tasks: int, fabric: str) -> None:
        self.gpus, self.tasks, self.fabric = gpus, max(1, tasks), fabric
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$0" "$@"', python, *program("measure", isolated=False)],  # ends if there is none
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def said(self) -> Dict[str, Any]:
        """Its next line."""
        line = self.process.stdout.readline() if self.process.stdout else b""
        words: Dict[str, Any] = json.loads(line.decode() or "{}")
        return words

    def imported(self) -> Result:
        """Whether PyTorch could be imported. The value is a port for each step."""
        words = self.said()
        if "torch" not in words:
            return unknown("no PyTorch: %s" % words.get("error", "its Python does not start"))
        return result(True, "PyTorch %s" % words["torch"], [free_port() for _ in range(STEPS)])

    def do(self, order: Dict[str, Any], node: str) -> List[Result]:
        """Carry out a step of the judge: `task`, its `limit` in seconds, the `groups` of nodes that measure together,
        and the `places` where they reach the first one of their group."""
        task, limit = order["task"], order["limit"]
        group = next(names for names in order["groups"] if node in names)
        alone = len(group) == 1
        processes = self.gpus or (self.tasks if alone else 1)
        address, port = ("127.0.0.1", free_port()) if alone else order["places"][group[0]]
        request = {
            "task": task,
            "gpus": self.gpus,
            "processes": processes,
            "first": group.index(node) * processes,
            "world": len(group) * processes,
            "address": "[%s]" % address if ":" in address else address,
            "port": port,
            "own": "127.0.0.1" if alone else order["places"][node][0],
            "limit": limit,
        }
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        ranks = self.said().get("ranks", [{}])
        if alone:
            return [*self.measured(ranks, limit), dict(result(True, ""), check=task)]
        found = self.value(ranks, "all_reduce", limit)
        found["value"] = min(found["value"]) if found["ok"] else None
        if found["ok"] is False and len(group) > 2:
            found["text"] = "%s: %s" % (task, found["text"])
        return [dict(found, check=task), *self.network(ranks)]

    def measured(self, ranks: Ranks, limit: float) -> List[Result]:
        """The results of a measurement: what follows the first that fails was not measured."""
        kind, results = "gpu" if self.gpus else "cpu", []
        names = [("matrix product", "matrix"), ("memory bandwidth", "memory")]
        names += [("host bandwidth", "host")] if self.gpus else []
        names += [("all-reduce", "all_reduce")] if len(ranks) > 1 else []
        for name, key in names:
            results.append(dict(self.value(ranks, key, limit), check="%s %s" % (kind, name)))
            if not results[-1]["ok"]:
                break
        return results

    def value(self, ranks: Ranks, key: str, limit: float) -> Result:
        """The values of all processes. One with an error comes before those that wait for it."""
        lacking = [(number, words) for number, words in enumerate(ranks) if key not in words]
        if any(words.get("unavailable") for words in ranks):
            return unknown("PyTorch sees no GPU")
        for number, words in sorted(lacking, key=lambda one: "error" not in one[1]):
            during = " (%s)" % words["during"] if words.get("during") else ""
            text = words.get("error") or "no answer within %d s%s" % (limit, during)
            return result(False, "%s %d: %s" % ("GPU" if self.gpus else "process", number, text))
        return result(True, ", ".join("%g" % words[key] for words in ranks), [words[key] for words in ranks])

    def network(self, ranks: Ranks) -> List[Result]:
        """Which network NCCL chose between nodes: a fallback to TCP raises no error."""
        names = sorted({str(words["network"]) for words in ranks if words.get("network")})
        if not self.gpus or not names:
            return [dict(unknown("NCCL names no network"), check=NETWORK)] if self.gpus else []
        wrong = self.fabric and "Socket" in names
        text = "NCCL uses %s%s" % (", ".join(names), ", although the site has %s" % self.fabric if wrong else "")
        return [dict(result(not wrong, text), check=NETWORK)]

    def close(self) -> None:
        """End the program and its processes. Waits for none: a driver may hold it."""
        send(-self.process.pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def rounds_of(names: List[str]) -> List[List[List[str]]]:
    """Pairs of neighbours in a ring, so that each node meets two others: two rounds, or three of an odd number."""
    if len(names) < 3:
        return [[names]] if len(names) == 2 else []
    rounds: List[List[List[str]]] = [[], [], []]
    for number, name in enumerate(names):
        last = len(names) % 2 == 1 and number == len(names) - 1
        rounds[2 if last else number % 2].append([name, names[(number + 1) % len(names)]])
    return [pairs for pairs in rounds if pairs]


def compare_measured(found: Results, rounds: List[List[List[str]]], gpus: int) -> Dict[str, str]:
    """Fail nodes that are far slower than the median; returns the medians, as texts, by check."""
    medians = {}
    for check, share in SHARES.items():
        by_node = values(found, check, list)
        if not by_node:
            continue
        usual = usual_of([one for ones in by_node.values() for one in ones])
        medians[check] = figure(check, usual)
        for node, ones in by_node.items():
            if min(ones) < share * usual:
                who = "%s %d" % ("GPU" if check.startswith("gpu") else "process", ones.index(min(ones)))
                words = (check, figure(check, min(ones)), who, figure(check, usual))
                fail(found, node, check, "%s: %s on %s; the median of the job is %s" % words)
    speeds = compare_pairs(found, rounds, SLOW_PAIR if gpus else SLOW_PAIR_CPU)
    ends = [results for results in found.values() if ALL in results]
    together = [results[ALL]["value"] for results in ends if results[ALL]["ok"]]
    for name, ones in (("all-reduce of pairs", speeds), (ALL, together)):
        if ones:
            medians[name] = figure(name, usual_of(ones))
    if any(results[ALL]["ok"] is False for results in ends):  # all wait for the one that fails
        for results in ends:
            results[ALL] = dict(results[ALL], ok=False if results[ALL]["ok"] is False else None)
    for results in found.values():
        results.pop(MEASUREMENT, None)
    return medians


def figure(check: str, value: float) -> str:
    """A value with its unit."""
    if not check.endswith("product"):
        return "%.3g GB/s" % value
    return "%.3g TFLOP/s" % (value / 1000) if value >= 1000 else "%.3g GFLOP/s" % value


def compare_pairs(found: Results, rounds: List[List[List[str]]], share: float) -> List[float]:
    """Replace the results of the pairs by what follows for each node; returns the speeds in GB/s.

    A node is bad if all its pairs fail or are slow, although one of its partners works with another node.
    """
    outcomes: List[Tuple[List[str], float, str]] = []
    for number, pairs in enumerate(rounds, 1):
        for pair in pairs:
            results = [found[name].pop(PAIR % number, {}) for name in pair]
            failed = [str(one["text"]) for one in results if one.get("ok") is False]
            speeds = [float(one["value"]) for one in results if one.get("ok")]
            if failed or len(speeds) == len(pair):
                speed = 0.0 if failed else min(speeds)
                outcomes.append((pair, speed, failed[0] if failed else "%.3g GB/s" % speed))
    known = [speed for _, speed, _ in outcomes if speed]
    usual = 0.0
    if len(known) > 1:  # of a few, the best: there may be only one good pair
        usual = max(known) if len(known) <= 3 else usual_of(known)
    met: Dict[str, List[str]] = {}
    bad: Dict[str, List[Tuple[str, str]]] = {}
    for pair, speed, text in outcomes:
        for name, other in (pair, pair[::-1]):
            met.setdefault(name, []).append(other)
            if not speed or speed < share * usual:
                bad.setdefault(name, []).append((other, text))
    proven = {name for name, others in met.items() if len(others) > len(bad.get(name, ()))}
    for name, others in met.items():
        text = "all-reduce %s" % "; ".join("with %s: %s" % one for one in bad.get(name, ()))
        text += "; the median of the pairs is %.3g GB/s" % usual if usual else ""
        if name in proven:
            found[name][PAIRS] = result(True, "")
            if any(other in proven for other, _ in bad.get(name, ())):
                found[name][LINK] = result(False, "%s: %s, although both work with other nodes" % (name, text))
        else:
            certain = not proven or (len(others) > 1 and any(other in proven for other in others))
            found[name][PAIRS] = result(False if certain else None, text)
    return known
