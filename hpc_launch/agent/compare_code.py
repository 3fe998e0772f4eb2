"""Which nodes have other code than most nodes, for compare.py. Pure.

A file that only few nodes have is no fault: the first node of an earlier run may have written it. Standard library of
Python 3.6 or later.
"""

from collections import Counter
from typing import Any, Dict, List, Tuple

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
