"""The node check's judgement: from the results of all nodes to those that are not fit for the job. Pure.

A node is bad if a check fails on it and passes on at least as many others: what fails on most of them is not the fault
of a node. For judge.py.
"""

from collections import Counter
from typing import Any, Collection, Dict, List, Tuple

from hpc_launch.agent.check_host import MISSING, result

SLOW = 0.4
"""A CPU that is slower than this share of the median is slow."""
SMALL = 0.75
CLOCK_S = 10.0
SLOW_LINK_S, SLOW_LINK = 1.0, 10.0
"""A transfer that takes longer than this, and so many times as long as on the other nodes, is slow."""
NOTE = "note"
"""The value of a check that neither passed nor failed, but whose text is reported."""
TEXT = 300
MOST_SHOWN = 3
MEASURED = ("gpu matrix product", "gpu memory bandwidth", "gpu host bandwidth", "gpu all-reduce")
OWN_HARDWARE = ("gpus", "gpu state", "gpu processes", "gpu compute", *MEASURED)
"""Checks whose failure is a fault of the node even in a job that has no other to compare it with."""
PORTS = "ports between nodes"

Results = Dict[str, Dict[str, Dict[str, Any]]]
"""node → check → result"""
Finding = Dict[str, Any]


def values(found: Results, check: str, kind: Any = (int, float)) -> Dict[str, Any]:
    """The values of a check by node, where it has one of this kind."""
    by_node = {node: results.get(check, {}).get("value") for node, results in found.items()}
    return {node: value for node, value in by_node.items() if isinstance(value, kind)}


def fail(found: Results, node: str, check: str, text: str) -> None:
    """Let a check fail that has passed on its own."""
    if found[node][check].get("ok"):
        found[node][check] = result(False, text)


def note(found: Results, node: str, check: str, text: str) -> None:
    """Report what may be no fault, without blaming the node."""
    found[node][check] = result(None, text, NOTE)


def compare(found: Results, memory_mib: int) -> None:
    """Compare the nodes with each other: a node can pass every absolute limit and still hold up the others."""
    total = values(found, "memory")
    usual = usual_of(total.values()) if total else 0
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
        ordered = sorted(clocks.values())
        usual = (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
        for node, ahead in clocks.items():
            if abs(ahead - usual) > CLOCK_S:
                words = (abs(ahead - usual), "ahead of" if ahead > usual else "behind")
                fail(found, node, "clock", "the clock is %.0f s %s those of the other nodes" % words)
    slow_links(found)
    compare_peers(found)
    own_disks(found)
    for check in ("software", "gpus", "code"):
        certain = check != "gpus" and len(values(found, check, dict)) > 2  # another works; of two nodes, who is right?
        for node, odd in odd_ones(found, check).items():
            text = "%s is %s here and %s on the other nodes" % odd[0]
            if check == "code":
                text = "the code differs from that of the other nodes: %s" % some([name for name, _, _ in odd])
            if found[node][check].get("ok"):
                (fail if certain else note)(found, node, check, text)


def usual_of(values: Collection[float]) -> float:
    """The median; of two in the middle the higher one. `statistics` takes longer to import than the comparison."""
    return sorted(values)[len(values) // 2]


def below(found: Results, check: str, share: float, text: str) -> None:
    """Fail a check on nodes whose value is below a share of the median."""
    by_node = values(found, check)
    usual = usual_of(by_node.values()) if len(by_node) > 1 else 0.0
    for node, value in by_node.items():
        if usual > 0 and value < share * usual * 0.999:
            fail(found, node, check, text % (100 * value / usual))


def slow_links(found: Results) -> None:
    """Fail nodes from which a transfer takes far longer than from the others."""
    seconds = values(found, "network")
    usual = sorted(seconds.values())[(len(seconds) - 1) // 2] if seconds else 0.0
    for node, one in seconds.items():
        if one > max(SLOW_LINK_S, SLOW_LINK * usual):
            text = "%s; %.3f s from the other nodes" % (found[node]["network"].get("text"), usual)
            fail(found, node, "network", text)


def odd_ones(found: Results, check: str) -> Dict[str, List[Tuple[str, Any, Any]]]:
    """By node, what of its value differs from that of most nodes: the name, its own part and the usual one."""
    odd: Dict[str, List[Tuple[str, Any, Any]]] = {}
    by_node = values(found, check, dict)
    for name in sorted({name for value in by_node.values() for name in value}):
        known = Counter(value[name] for value in by_node.values() if name in value)
        usual, count = known.most_common(1)[0]
        if 2 * count <= len(by_node) and not len(by_node) == len(known) == 2:
            continue
        for node, value in by_node.items():
            if value.get(name) != usual:
                odd.setdefault(node, []).append((name, value.get(name, "none"), usual))
    return odd


def own_disks(found: Results) -> None:
    """Blame no node for lacking a path that is on the own disks of the nodes that have it, such as a folder in /tmp."""
    for check in sorted({check for results in found.values() for check in results if check.startswith("path ")}):
        places = values(found, check, str)
        if {place for place in places.values() if place != MISSING} == {"local"}:
            for node in (node for node, place in places.items() if place == MISSING):
                text = "%s; the nodes that have it have it on their own disks" % found[node][check].get("text")
                note(found, node, check, text)


def compare_peers(found: Results) -> None:
    """Blame a node that most of the others cannot reach, and else the one that cannot reach it.

    A node counts as reached if it did not listen: the port was in use, or its check did not start.
    """
    if not all(PORTS in results or "answer" in results for results in found.values()):
        return  # what is missing may change whom to blame
    peers = values(found, PORTS, dict)
    failed: Dict[str, Dict[str, str]] = {}
    """By the node that does not answer, what each of the others says."""
    for node, value in peers.items():
        for other, text in value["failed"].items():
            if other in peers and peers[other]["listens"]:
                failed.setdefault(other, {})[node] = text
    texts: Dict[str, List[str]] = {}
    for other, said in failed.items():
        port, count = peers[other]["port"], peers[other]["count"]
        if len(said) > 1 and 2 * len(said) > count:
            words = (some(sorted(said)), port, next(iter(said.values())))
            texts[other] = ["%s cannot connect to it at port %d: %s" % words]
            continue
        for node, text in said.items():
            back = "" if other in failed.get(node, {}) else "; %s can connect to %s" % (other, node)
            texts.setdefault(node, []).append("cannot connect to %s port %d: %s%s" % (other, port, text, back))
    for node, said_of in texts.items():
        fail(found, node, PORTS, "; ".join(said_of[:MOST_SHOWN]))


def some(names: List[str]) -> str:
    """`n1, n3, n4 and 4 others`."""
    more = len(names) - MOST_SHOWN
    return ", ".join(names[:MOST_SHOWN]) + (" and %d others" % more if more > 0 else "")


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
        # Other GPUs than the profile states may be the fault of the profile: then the value is False.
        own = len(found) == 1 and check in OWN_HARDWARE and outcomes[next(iter(found))].get("value") is not False
        if failed and (most or own):
            bad += [{"node": node, "check": check, "text": clean(outcomes[node].get("text"))} for node in failed]
        elif failed:
            common.append({"check": check, "text": clean(outcomes[failed[0]].get("text")), "nodes": len(failed)})
        elif outcomes and not passed and not noted:
            unchecked[check] = clean(next(iter(outcomes.values())).get("text"))
    return bad, common, unchecked


def clean(text: Any) -> str:
    """A text for the log."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:TEXT])
