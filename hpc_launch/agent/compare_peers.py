"""What follows from the connections between the nodes, for compare.py. Pure.

Standard library of Python 3.6 or later.
"""

from typing import Any, Dict, List

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
