"""The order of a job's nodes in which those of a switch, or of a block of NVLink, are beside each other.

    scontrol --oneliner show topology | node_order.py NODE...

Prints the nodes, one a line. Slurm itself orders them by name (seen with 22.05 to 26.05), unless the site sets
SwitchAsNodeRank or BlockAsNodeRank (slurm.conf(5), TopologyParam).
"""

import re
import sys
from typing import Iterator, List, Sequence, Set


def in_order(nodes: Sequence[str], topology: str) -> List[str]:
    """The nodes, by the switches and blocks of `scontrol show topology`; in their own order where it is as good."""
    ordered, wanted = list(nodes), set(nodes)
    groups: List[Set[str]] = [wanted & set(expand(text)) for text in re.findall(r"\bNodes=(\S+)", topology)]
    for group in sorted(groups, key=len, reverse=True):  # a group's parts stay within it
        if len(group) > 1:
            first = next(at for at, node in enumerate(ordered) if node in group)
            before, after = ordered[:first], ordered[first:]
            ordered = before + [one for one in after if one in group] + [one for one in after if one not in group]
    return ordered


def expand(text: str) -> Iterator[str]:
    """The names of a host list of Slurm, such as `n[1,3-5],gpu-b[01-02]c1`."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        begin, bracket, rest = part.partition("[")
        numbers, _, end = rest.partition("]")
        if not bracket:
            yield part
            continue
        for piece in numbers.split(","):
            first, _, last = piece.partition("-")
            for number in range(int(first), int(last or first) + 1):
                for name in expand(end) if end else [""]:
                    yield "%s%0*d%s" % (begin, len(first), number, name)


def main(nodes: List[str]) -> None:
    """Print the nodes in their order."""
    print("\n".join(in_order(nodes, sys.stdin.read())))
