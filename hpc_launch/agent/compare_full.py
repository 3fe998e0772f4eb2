"""The judgement of the measurements of `preflight: full`: each GPU against the median of all GPUs of the job. Pure.

Standard library of Python 3.6 or later, for judge.py.
"""

import statistics
from typing import Any, Dict, List

from hpc_launch.agent.compare import LARGE, Results, fail, values
from hpc_launch.agent.rounds import ALL, PAIR, ROUNDS

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
