"""The order of a job's nodes by `scontrol show topology`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpc_launch.agent import program
from hpc_launch.agent.node_order import expand, in_order

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1,4,7]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2,5,8]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3,6,9]
SwitchName=m0 Level=1 LinkSpeed=1 Nodes=n[1,3-4,6-7,9] Switches=s[0,2]
SwitchName=top Level=2 LinkSpeed=1 Nodes=n[1-9] Switches=m0,s1
"""
BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n[1,3] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[2,4] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""


@pytest.mark.parametrize(
    ("nodes", "topology", "ordered"),
    [
        # The switches below one switch are beside each other, too.
        ("1 2 3 4 5 6 7 8 9", TREE, "1 4 7 3 6 9 2 5 8"),
        ("2 3 5 6 9", TREE, "2 5 3 6 9"),
        ("1 2 3 4", BLOCKS, "1 3 2 4"),
        ("1 3 2 4", BLOCKS, "1 3 2 4"),
        ("4 5 12", TREE, "4 5 12"),  # one of them is connected to no switch
        ("1 2 3", "", "1 2 3"),
    ],
)
def test_nodes_of_a_switch_are_beside_each_other(nodes: str, topology: str, ordered: str) -> None:
    assert in_order([f"n{node}" for node in nodes.split()], topology) == [f"n{node}" for node in ordered.split()]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1,n3", "n1 n3"),
        ("n[1,3-5],gpu-b[09-10]c1", "n1 n3 n4 n5 gpu-b09c1 gpu-b10c1"),
        ("x[1-2]y[1-2]", "x1y1 x1y2 x2y1 x2y2"),
        ("(null)", "(null)"),
    ],
)
def test_a_host_list_has_its_names(text: str, names: str) -> None:
    assert list(expand(text)) == names.split()


def test_the_program_prints_a_node_a_line() -> None:
    command = [sys.executable, *program("node_order"), "n1", "n2", "n3", "n4"]
    done = subprocess.run(command, input=BLOCKS, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["n1", "n3", "n2", "n4"]
