"""The leaf switch or block of nodes, from what `scontrol show topology` printed."""

from __future__ import annotations

import pytest

from hpc_launch.schedulers.slurm.query_cluster import leaf_switches

TREE = """\
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2,4]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[1,3]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[1-2]
"""
"""Slurm 22.05 and 26.05."""
BLOCK = """\
BlockName=b1 BlockIndex=0 Nodes=n[2,4] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[1,3] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""
"""Slurm 26.05, and the line of a larger block (src/plugins/topology/block/block_record.c)."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TREE, {"n1": "s2", "n2": "s1"}),
        (BLOCK, {"n1": "b2", "n2": "b1"}),
        (BLOCK + TREE, {"n1": "b2", "n2": "b1"}),
        ("", {}),
        ("No topology information available\n", {}),
        ("SwitchName=s1 Level=0 LinkSpeed=1 Nodes=(null)\nSwitchName=s2 Level=0 Nodes=n[1\n", {}),
    ],
)
def test_the_leaf_switch_or_block(text: str, expected: dict[str, str]) -> None:
    assert leaf_switches(text, ["n1", "n2", "n9"]) == expected
