"""The order of ranks on a cluster whose switches are not those that the nodes' names suggest."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.slurm.own_program import job_of
from tests.slurm.user import User

TREE = "SwitchName=s0 Nodes=n1,n3\nSwitchName=s1 Nodes=n2,n4\nSwitchName=top Switches=s[0-1]\n"
BLOCKS = "BlockName=b0 Nodes=n1,n3\nBlockName=b1 Nodes=n2,n4\nBlockSizes=2,4\n"
BY_SWITCH = ["n1", "n3", "n2", "n4"]
WHERE = """\
import os
node = os.environ.get("GROUP_RANK") or os.environ["CROSS_RANK"]  # DeepSpeed's name
print("rank", os.environ["RANK"], "of node", node, "is on", os.uname().nodename,
      "sees", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""


def user_of(cluster: Cluster) -> User:
    user = User(cluster, cluster.user_folder())
    changes = ("gpus: 4, gpu_type: a100, gpu_vendor: nvidia", "gpus: 0"), ("nodes: 1-4", "nodes: 1-6")
    user.site("launch: {node_order: switches}\n", *changes)
    return user


def ranks(user: User, launcher: object, per_node: int, **keys: Any) -> list[tuple[int, str]]:
    """(rank, host) as the ranks print them, each in the log of its node by the order of `status`."""
    more: dict[str, Any] = {"processes_per_node": per_node, "cpus_per_node": per_node, "nodes": 4, **keys}
    user.completed(job_of(user, WHERE, launcher, **more))
    (logs,) = user.home.glob("runs/*/attempts/001/logs")
    found = []
    for node, host in enumerate(user.nodes()):
        text = "".join(path.read_text() for path in logs.glob(f"node-{node}*.log"))
        lines = re.findall(r"rank (\d) of node (\d) is on (n\d)", text)
        assert {(int(number), name) for _, number, name in lines} == {(node, host)}, text
        found += [(int(rank), name) for rank, _, name in lines]
    return sorted(found)


@pytest.mark.cluster
@pytest.mark.prove
@pytest.mark.parametrize(("launcher", "per_node"), [("srun", 2), ("torchrun", 1), ("deepspeed", 2)])
def test_ranks_follow_the_switches(launcher: str, per_node: int) -> None:
    with Cluster.start(4, 0, False, slurm_conf=["TopologyPlugin=topology/tree"], topology=TREE) as cluster:
        found = ranks(user_of(cluster), launcher, per_node)
    assert found == [(rank, BY_SWITCH[rank // per_node]) for rank in range(4 * per_node)]


@pytest.mark.cluster
@pytest.mark.prove
@pytest.mark.parametrize("system", ["trixie", "sid"])
def test_ranks_follow_the_blocks(system: str) -> None:
    """Of newer releases, which know blocks; 26.05 refuses --nodes with the arbitrary distribution."""
    conf = ["TopologyPlugin=topology/block"]
    with Cluster.start(4, 0, False, system=system, slurm_conf=conf, topology=BLOCKS) as cluster:
        found = ranks(user_of(cluster), "srun", 1, sbatch={"segment": 2})
    assert [name for _, name in found] == BY_SWITCH


@pytest.mark.cluster
@pytest.mark.prove
def test_ranks_follow_the_switches_beside_a_spare() -> None:
    topology = TREE.replace("n1,n3", "n1,n3,n5").replace("n2,n4", "n2,n4,n6")
    with Cluster.start(6, 0, False, slurm_conf=["TopologyPlugin=topology/tree"], topology=topology) as cluster:
        found = ranks(user_of(cluster), "torchrun", 1, spares=1)
    switches = [int(name[1:]) % 2 for _, name in found]
    assert sum(one != other for one, other in pairwise(switches)) == 1, found


@pytest.mark.cluster
@pytest.mark.prove
def test_the_site_may_order_the_nodes_itself() -> None:
    conf = ["TopologyPlugin=topology/tree", "TopologyParam=SwitchAsNodeRank"]
    with Cluster.start(4, 0, False, system="sid", slurm_conf=conf, topology=TREE) as cluster:
        user = user_of(cluster)
        found = ranks(user, "srun", 1)
        assert not list(user.home.glob("runs/*/attempts/001/order"))
    assert [name for _, name in found] == BY_SWITCH
