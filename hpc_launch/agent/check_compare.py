"""The node check's judgement: from the results of all nodes to those that are not fit for the job. Pure.

A node is bad if a check fails on it and passes on at least as many others: what fails on most of them is not the fault
of a node. Standard library of Python 3.6 or later, for judge.py.
"""

import json
import statistics
from collections import Counter
from typing import Any, Dict, List, Tuple

from hpc_launch.agent.check_host import MISSING

MOST_NAMES = 3


def other_code(found: Dict[str, Dict[str, Dict[str, Any]]]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """What differs, by node: in files, which is a fault; and where that is not certain.

    Of folders, only their digests are known, and of two nodes, not which one is right.
    """
    values = {node: results.get("code", {}).get("value") for node, results in found.items()}
    nodes = {
        node: value["code"]
        for node, value in values.items()
        if isinstance(value, dict) and isinstance(value.get("code"), dict)
    }
    wrong: Dict[str, List[str]] = {}
    unsure: Dict[str, List[str]] = {}
    for name in sorted({name for digests in nodes.values() for name in digests}):
        known = Counter(str(digests[name]) for digests in nodes.values() if name in digests)
        usual, count = known.most_common(1)[0]
        if 2 * count > len(nodes):
            kind = unsure if name.endswith("/") else wrong
            for node, digests in nodes.items():
                if str(digests.get(name)) != usual:
                    kind.setdefault(node, []).append(name)
        elif len(nodes) == 2 and len(known) == 2:
            unsure.setdefault(list(nodes)[1], []).append(name)
    return {node: text_of(names) for node, names in wrong.items()}, {
        node: text_of(names) for node, names in unsure.items() if node not in wrong
    }


def text_of(names: List[str]) -> str:
    """Which files differ."""
    more = " and %d others" % (len(names) - MOST_NAMES) if len(names) > MOST_NAMES else ""
    return "the code differs from that of the other nodes: %s%s" % (", ".join(names[:MOST_NAMES]), more)


CHECK = "ports between nodes"
MOST_SHOWN = 3


def compare_peers(found: Dict[str, Dict[str, Dict[str, Any]]]) -> None:
    """Blame a node that most of the others cannot reach, and else the one that cannot reach it.

    A node counts as reached if it did not listen: the port was in use, or its check did not start.
    """
    if not all(CHECK in results or "answer" in results for results in found.values()):
        return  # what is missing may change whom to blame
    values = {node: results[CHECK]["value"] for node, results in found.items() if is_whole(results.get(CHECK, {}))}
    failed: Dict[str, Dict[str, str]] = {}
    """By the node that does not answer, what each of the others says."""
    for node, value in values.items():
        for other, text in value["failed"].items():
            if other in values and values[other]["listens"]:
                failed.setdefault(other, {})[node] = str(text)
    texts: Dict[str, List[str]] = {}
    for other, said in failed.items():
        port, count = values[other]["port"], values[other]["count"]
        if len(said) > 1 and 2 * len(said) > count:
            names = some(sorted(said))
            texts[other] = ["%s cannot connect to it at port %d: %s" % (names, port, next(iter(said.values())))]
            continue
        for node, text in said.items():
            back = "" if other in failed.get(node, {}) else "; %s can connect to %s" % (other, node)
            texts.setdefault(node, []).append("cannot connect to %s port %d: %s%s" % (other, port, text, back))
    for node, said_of in texts.items():
        found[node][CHECK] = {"ok": False, "text": "; ".join(said_of[:MOST_SHOWN]), "value": None}


def is_whole(one: Dict[str, Any]) -> bool:
    """Whether the result of a node is one of this check, and complete."""
    value = one.get("value")
    return (
        one.get("ok") is True
        and isinstance(value, dict)
        and isinstance(value.get("failed"), dict)
        and isinstance(value.get("port"), int)
        and isinstance(value.get("count"), int)
        and "listens" in value
    )


def some(names: List[str]) -> str:
    """`n1, n3 and 4 others`."""
    more = len(names) - MOST_SHOWN
    return ", ".join(names[:MOST_SHOWN]) + (" and %d others" % more if more > 0 else "")


SLOW = 0.4
"""A CPU that is slower than this share of the median is slow."""
SMALL = 0.75
CLOCK_S = 10.0
SLOW_LINK_S, SLOW_LINK = 1.0, 10.0
"""A transfer that takes longer than this, and so many times as long as on the other nodes, is slow."""
LARGE = 1e15
NOTE = "note"
"""The value of a check that neither passed nor failed, but whose text is reported."""
TEXT = 300
MEASURED = ("gpu matrix product", "gpu memory bandwidth", "gpu host bandwidth", "gpu all-reduce")
OWN_HARDWARE = ("gpus", "gpu state", "gpu processes", "gpu compute", "kernel log", *MEASURED)
"""Checks whose failure is a fault of the node even in a job that has no other to compare it with."""

Results = Dict[str, Dict[str, Dict[str, Any]]]
"""node → check → result"""
Finding = Dict[str, Any]


def values(found: Results, check: str, key: str = "") -> Dict[str, float]:
    """The values of a check by node, where it has one."""
    by_node = {}
    for node, results in found.items():
        value = results.get(check, {}).get("value")
        value = value.get(key) if key and isinstance(value, dict) else value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGE < value < LARGE:  # not NaN
            by_node[node] = float(value)
    return by_node


def fail(found: Results, node: str, check: str, text: str) -> None:
    """Let a check fail that has passed on its own."""
    if found[node][check].get("ok"):
        found[node][check] = {"ok": False, "text": text, "value": None}


def compare(found: Results, memory_mib: int) -> None:
    """Compare the nodes with each other: a node can pass every absolute limit and still hold up the others."""
    total = values(found, "memory", "total_mib")
    usual = statistics.median_high(list(total.values())) if total else 0
    for node, mib in total.items():
        if mib < SMALL * usual or (memory_mib and mib < SMALL * memory_mib):
            text = "has %d MiB of memory, not %d" % (mib, usual if mib < SMALL * usual else memory_mib)
            fail(found, node, "memory", text)
    below(found, "cpu", SLOW, "the CPU has %.0f %% of the speed of the other nodes")
    below(found, "gpu links", 1.0, "has %.0f %% of the NVLinks of the other nodes")
    below(found, "infiniband", 1.0, "has %.0f %% of the InfiniBand rate of the other nodes")
    for check in sorted({check for results in found.values() for check in results if check.startswith("interface ")}):
        below(found, check, 1.0, check + " has %.0f %% of the rate of the other nodes")
    clocks = values(found, "clock")
    if len(clocks) > 2:
        usual = statistics.median(list(clocks.values()))
        for node, ahead in clocks.items():
            if abs(ahead - usual) > CLOCK_S:
                words = (abs(ahead - usual), "ahead of" if ahead > usual else "behind")
                fail(found, node, "clock", "the clock is %.0f s %s those of the other nodes" % words)
    slow_links(found)
    same_software(found)
    same_code(found)
    same_gpus(found)
    compare_peers(found)
    own_disks(found)


def note(found: Results, node: str, check: str, text: str) -> None:
    """Report what may be no fault, without blaming the node."""
    found[node][check] = {"ok": None, "text": text, "value": NOTE}


def own_disks(found: Results) -> None:
    """Blame no node for lacking a path that is on the own disks of the nodes that have it, such as a folder in /tmp."""
    for check in sorted({check for results in found.values() for check in results if check.startswith("path ")}):
        outcomes = {node: results[check] for node, results in found.items() if check in results}
        places = [one.get("value") for one in outcomes.values() if one.get("ok") is True]
        missing = [node for node, one in outcomes.items() if one.get("ok") is False and one.get("value") == MISSING]
        if places and all(place == "local" for place in places):
            for node in missing:
                text = "%s; the nodes that have it have it on their own disks" % outcomes[node].get("text")
                note(found, node, check, text)


def slow_links(found: Results) -> None:
    """Fail nodes from which a transfer takes far longer than from the others."""
    seconds = values(found, "network")
    usual = statistics.median_low(list(seconds.values())) if seconds else 0.0
    for node, one in seconds.items():
        if one > max(SLOW_LINK_S, SLOW_LINK * usual):
            text = "%s; %.3f s from the other nodes" % (found[node]["network"].get("text"), usual)
            fail(found, node, "network", text)


def below(found: Results, check: str, share: float, text: str) -> None:
    """Fail a check on nodes whose value is below a share of the median."""
    by_node = values(found, check)
    usual = statistics.median_high(list(by_node.values())) if len(by_node) > 1 else 0.0
    for node, value in by_node.items():
        if usual > 0 and value < share * usual * 0.999:
            fail(found, node, check, text % (100 * value / usual))


def same_software(found: Results) -> None:
    """Nodes whose Python or PyTorch differs from that of most nodes."""
    names = {node: results.get("software", {}).get("value") for node, results in found.items()}
    versions = {node: json.dumps(value, sort_keys=True) for node, value in names.items() if isinstance(value, dict)}
    if not versions:
        return
    usual, count = Counter(versions.values()).most_common(1)[0]
    for node, text in versions.items():
        if text != usual and 2 * count > len(versions):
            mine, theirs = json.loads(text), json.loads(usual)
            name = min(key for key in set(mine) | set(theirs) if mine.get(key) != theirs.get(key))
            words = (name, mine.get(name, "none"), theirs.get(name, "none"))
            fail(found, node, "software", "%s is %s here and %s on the other nodes" % words)


def odd_ones(found: Results, check: str, key: str) -> Dict[str, Tuple[Any, Any]]:
    """Nodes whose value differs from that of most nodes: their value, and the usual one."""
    by_node = {node: results.get(check, {}).get("value") for node, results in found.items()}
    texts = {
        node: json.dumps(value[key], sort_keys=True)
        for node, value in by_node.items()
        if isinstance(value, dict) and key in value
    }
    if not texts:
        return {}
    usual, count = Counter(texts.values()).most_common(1)[0]
    if 2 * count <= len(texts):
        return {}
    return {node: (json.loads(text), json.loads(usual)) for node, text in texts.items() if text != usual}


def same_code(found: Results) -> None:
    """Fail nodes whose code differs from that of most nodes."""
    wrong, unsure = other_code(found)
    for node, text in wrong.items():
        fail(found, node, "code", text)
    for node, text in unsure.items():
        note(found, node, "code", text)


def same_gpus(found: Results) -> None:
    """Report another model or driver: the training runs, though perhaps slower."""
    for check, key, what in (("gpus", "models", "the GPUs are"), ("gpu driver", "driver", "the GPU driver is")):
        for node, (mine, theirs) in odd_ones(found, check, key).items():
            if found[node][check].get("ok"):
                note(found, node, check, "%s %s, and %s on the other nodes" % (what, plain(mine), plain(theirs)))


def plain(value: Any) -> str:
    """A value, or the values of a list."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def judged(found: Results, early: bool = False) -> Tuple[List[Finding], List[Finding], Dict[str, str]]:
    """What is wrong with single nodes, what fails on most of them, and what could not be checked.

    `early`: only what the results that are still missing cannot change.
    """
    bad, common, unchecked = [], [], {}  # type: List[Finding], List[Finding], Dict[str, str]
    for check in sorted({check for results in found.values() for check in results}):
        outcomes = {node: results[check] for node, results in found.items() if check in results}
        failed = [node for node, one in outcomes.items() if one.get("ok") is False]
        passed = [node for node, one in outcomes.items() if one.get("ok") is True]
        noted = [node for node, one in outcomes.items() if one.get("ok") is None and one.get("value") == NOTE]
        texts = ["%s: %s" % (node, outcomes[node].get("text")) for node in noted]
        common += [{"check": check, "text": clean(text), "nodes": 1} for text in texts]
        most = 2 * len(passed) >= len(found) if early else len(failed) <= len(passed)
        alone = len(found) == 1 and check in OWN_HARDWARE
        if failed and (most or (alone and is_own(outcomes[failed[0]].get("value")))):
            bad += [{"node": node, "check": check, "text": clean(outcomes[node].get("text"))} for node in failed]
        elif failed:
            common.append({"check": check, "text": clean(outcomes[failed[0]].get("text")), "nodes": len(failed)})
        elif outcomes and not passed and not noted:
            unchecked[check] = clean(next(iter(outcomes.values())).get("text"))
    return bad, common, unchecked


def is_own(value: Any) -> bool:
    """Whether it is the fault of an only node: other GPUs than the profile states may be that of the profile."""
    few = value if isinstance(value, dict) and isinstance(value.get("gpus"), int) else None
    return few is None or (isinstance(few.get("promised"), int) and few["gpus"] < few["promised"])


def clean(text: Any) -> str:
    """A text for the log."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:TEXT])
