"""Each process runs on CPUs of its GPU's NUMA domain, which no other has. /sys, /proc and /dev are stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpc_launch.script.parts import part
from tests.topology import Topology, listed, node, put

DGX: Topology = [
    ("0-47,96-143", ["0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0"]),
    ("48-95,144-191", ["0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0"]),
]
LUMI: Topology = [
    ("0-15,64-79", ["0000:d1:00.0", "0000:d6:00.0"]),
    ("16-31,80-95", ["0000:c9:00.0", "0000:ce:00.0"]),
    ("32-47,96-111", ["0000:d9:00.0", "0000:de:00.0"]),
    ("48-63,112-127", ["0000:c1:00.0", "0000:c6:00.0"]),
]
LUMI_FOR_JOBS = "1-7,9-15,17-23,25-31,33-39,41-47,49-55,57-63"
GRACE: Topology = [(f"{72 * node}-{72 * node + 71}", [f"00{node:02x}:01:00.0"]) for node in range(4)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for the stand-ins, with `bind.sh` as the job writes it and a `taskset` that prints its list."""
    text = f"die() {{ exit 1; }}\nattempt_dir={tmp_path}\n{part('bind_ranks')}"
    subprocess.run(["bash", "-c", text], check=True)
    put(tmp_path / "bin" / "taskset", '#!/bin/sh\necho "$3" >"$CHOSEN"\n')
    (tmp_path / "bin" / "taskset").chmod(0o755)
    return tmp_path


def bound(root: Path, ranks: int, mode: str = "exclusive", **variables: str) -> list[set[int]]:
    """The CPUs of each process of the node; the empty set for one that is not bound."""
    result = []
    for rank in range(ranks):
        chosen = root / f"chosen.{rank}"
        chosen.unlink(missing_ok=True)
        own = {"HPC_LAUNCH_TOPOLOGY": str(root), "CHOSEN": str(chosen), "LOCAL_RANK": str(rank)}
        done = subprocess.run(
            ["bash", root / "bind.sh", mode, "printf", "%s", "the program"],
            env={"PATH": f"{root}/bin:{os.environ['PATH']}", **own, "LOCAL_WORLD_SIZE": str(ranks), **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("the program", "")
        result.append(listed(chosen.read_text().strip()) if chosen.exists() else set())
    return result


def test_two_sockets_with_two_threads_a_core(root: Path) -> None:
    node(root, DGX, 96, "nvidia")
    cpus = bound(root, 8)
    assert cpus[0] == listed("0-11,96-107")
    assert cpus[7] == listed("84-95,180-191")
    assert sum(map(len, cpus)) == len(set.union(*cpus)) == 192


def test_the_domains_of_lumi_are_not_in_the_order_of_its_gpus(root: Path) -> None:
    """The same CPUs as in the masks that LUMI's guide gives for processes that srun starts."""
    node(root, LUMI, 64, "amd", allowed=LUMI_FOR_JOBS)
    masks = "49-55 57-63 17-23 25-31 1-7 9-15 33-39 41-47".split()
    assert bound(root, 8) == [listed(mask) for mask in masks]


def test_one_domain_a_gpu(root: Path) -> None:
    node(root, GRACE, 0, "nvidia")
    assert bound(root, 4) == [listed(cpus) for cpus, _ in GRACE]


def test_a_part_of_a_node_is_divided_among_its_own_processes(root: Path) -> None:
    node(root, DGX, 96, "nvidia", allowed="40-55")
    for number in (0, 1, 2, 5, 6, 7):
        (root / f"dev/nvidia{number}").unlink()  # the cgroup of the job hides them
    assert bound(root, 2) == [listed("40-47"), listed("48-55")]


def test_a_whole_domain_for_each_process(root: Path) -> None:
    node(root, DGX, 96, "nvidia")
    cpus = bound(root, 8, "node")
    assert cpus == [listed(DGX[0][0])] * 4 + [listed(DGX[1][0])] * 4


@pytest.mark.parametrize(
    ("variables", "domains"),
    [
        ({"CUDA_VISIBLE_DEVICES": "7,0"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000004,GPU-00000001-1111"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "0,8"}, None),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_the_gpus_that_a_process_sees(root: Path, variables: dict[str, str], domains: list[int] | None) -> None:
    node(root, DGX, 96, "nvidia")
    expected = [listed(DGX[domain][0]) for domain in domains] if domains else [set[int]()] * 2
    assert bound(root, 2, **variables) == expected


def test_amds_variables(root: Path) -> None:
    """HIP counts the devices that ROCR leaves it."""
    node(root, LUMI, 64, "amd")
    first, last = listed(LUMI[0][0]), listed(LUMI[3][0])
    assert bound(root, 2, ROCR_VISIBLE_DEVICES="0,4") == [last, first]
    assert bound(root, 2, ROCR_VISIBLE_DEVICES="0,4", HIP_VISIBLE_DEVICES="1,0") == [first, last]


def test_nothing_is_bound_where_the_division_is_not_certain(root: Path) -> None:
    nothing = [set[int]()] * 8
    node(root, DGX, 96, "nvidia")
    assert bound(root, 8, LOCAL_WORLD_SIZE="") == nothing
    put(root / "sys/bus/pci/devices/0000:df:00.0/numa_node", "-1\n")
    assert bound(root, 8) == nothing
    node(root, DGX, 96, "nvidia", allowed="0-50")  # three cores of the second domain
    assert bound(root, 8) == nothing


def test_a_machine_with_one_domain_is_left_alone(root: Path) -> None:
    node(root, [("0-15", ["0000:1b:00.0", "0000:43:00.0"])], 0, "nvidia")
    assert bound(root, 2) == [set(), set()]


def test_a_real_process(root: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one CPU")
    (root / "bin/taskset").unlink()
    node(root, [(f"{allowed[0]}", ["0000:1b:00.0"]), (f"{allowed[1]}", ["0000:43:00.0"])], 0, "nvidia")
    for rank in range(2):
        own = {"HPC_LAUNCH_TOPOLOGY": str(root), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        words = [
            "bash",
            str(root / "bind.sh"),
            "exclusive",
            "python3",
            "-c",
            "import os; print(os.sched_getaffinity(0))",
        ]
        done = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, check=True)
        assert done.stdout == f"{{{allowed[rank]}}}\n"
