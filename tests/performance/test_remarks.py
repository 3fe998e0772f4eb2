"""What may make a training slow: each remark from facts that show it, and none from a run that does well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpc_launch.performance.run_samples import Gpu, LogFact, NodeSamples, RankSamples, RunFacts, first_lines, gather
from hpc_launch.performance.slow_training import attempt_remarks, remarks
from hpc_launch.runs.layout import RunFolder

SOCKETS = """\
n1:880:887 [0] NCCL INFO NET/IB : No device found.
n1:880:887 [0] NCCL INFO NET/Socket : Using [0]eth0:172.17.0.2<0>
n1:880:887 [0] NCCL INFO Using network Socket
n1:880:887 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
"""
FABRIC = """\
[rank0]: n1:880:887 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
[rank0]: n1:880:887 [0] NCCL INFO Using network AWS Libfabric
[rank0]: n1:880:887 [0] NCCL INFO NET/Socket : Using [0]eth0:172.17.0.2<0>
"""
STAGED = """\
n1:880:887 [0] NCCL INFO + NVL[48.0] - GPU/A9000
n1:880:887 [2] NCCL INFO Channel 00 : 2[2] -> 3[3] via SHM/direct/direct
"""
DIRECT = """\
n1:880:887 [0] NCCL INFO + NVL[48.0] - GPU/A9000
n1:880:887 [2] NCCL INFO Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM/read
n1:880:887 [2] NCCL INFO Channel 00 : 3[3] -> 0[0] via SHM/direct/direct
"""
BROKEN = (
    "n1:1:1 [0] graph/paths.cc:299 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This should not"
)
WORKERS = (
    "[rank0]: dataloader.py:481: UserWarning: This DataLoader will create 32 worker processes in total. "
    "Our suggested max number of worker in current system is 2, which is smaller than what this DataLoader\n"
)
HERE = {"running": 0.9, "futex_do_wait": 0.1}
WAITS = {"running": 0.1, "futex_do_wait": 0.9}
NO_REASONS = {"hardware slowdown": 0.0, "software thermal slowdown": 0.0}


def lines(text: str, node: str = "n1") -> tuple[LogFact, ...]:
    return tuple(first_lines(text.encode(), "logs/node-0.log", node=node))


def gpus(*utils: float, **more: Any) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, 10, util, 60_000, **{"throttled": NO_REASONS, **more}) for index, util in enumerate(utils))


def ranks(*places: dict[str, float], first: int = 0) -> tuple[RankSamples, ...]:
    return tuple(RankSamples(rank, 40, place) for rank, place in enumerate(places, first))


WELL = RunFacts(
    nodes=(
        NodeSamples("n1", ranks(HERE, HERE), gpus(97, 96), {"ib0": 1e6, "mlx5_0:1": 8e9}, 8),
        NodeSamples("n2", ranks(HERE, HERE, first=2), gpus(95, 98), {"ib0": 1e6, "mlx5_0:1": 8e9}, 8),
    ),
    lines=lines(FABRIC + DIRECT),
    fabric="infiniband",
    planned_nodes=2,
)
ON_CPUS = RunFacts((NodeSamples("n1", ranks(HERE, HERE)), NodeSamples("n2", ranks(HERE, first=2))), planned_nodes=2)


def told(facts: RunFacts) -> list[tuple[str, str | None]]:
    return [(remark.kind, remark.node) for remark in remarks(facts)]


def nodes(first: NodeSamples | None = None, second: NodeSamples | None = None) -> RunFacts:
    return replace(WELL, nodes=(first or WELL.nodes[0], second or WELL.nodes[1]))


@pytest.mark.parametrize(
    "facts",
    [
        WELL,
        ON_CPUS,
        RunFacts(),
        replace(WELL, lines=()),
        # Even ranks of a small model wait for each other all the time.
        replace(ON_CPUS, nodes=(NodeSamples("n1", ranks(WAITS, WAITS)), NodeSamples("n2", ranks(WAITS, first=2)))),
        # Sockets are what an Ethernet has, and what one node needs none of.
        replace(WELL, lines=lines(SOCKETS), fabric="ethernet", nodes=()),
        replace(WELL, lines=lines(SOCKETS), planned_nodes=1, nodes=()),
        # The host's memory is the way where there is no NVLink.
        RunFacts(lines=lines(STAGED.splitlines()[1])),
        # A GPU at full load lives at its power cap; one that the job left alone is nobody's laggard.
        nodes(replace(WELL.nodes[0], gpus=(*gpus(97), Gpu(1, 10, 0, 3)))),
        # Two samples may be a checkpoint, seven count an evaluation.
        nodes(replace(WELL.nodes[0], gpus=tuple(replace(gpu, samples=2, util=5) for gpu in gpus(1, 1)))),
        replace(ON_CPUS, nodes=(NodeSamples("n1", (RankSamples(0, 7, WAITS), RankSamples(1, 7, HERE))),)),
        replace(WELL, lines=lines(WORKERS)),
    ],
)  # fmt: skip
def test_a_run_that_does_well_gets_no_remark(facts: RunFacts) -> None:
    assert remarks(facts) == ()


def test_sockets_where_there_is_a_fabric() -> None:
    found = remarks(replace(WELL, lines=lines(SOCKETS), fabric="slingshot", nodes=WELL.nodes[:1]))
    assert [(remark.kind, remark.node) for remark in found] == [("plain_sockets", None)]
    assert "slingshot" in found[0].text
    assert [quote.line for quote in found[0].quotes] == [3, 1]
    # InfiniBand ports that the watcher saw tell as much as the site's profile.
    assert told(replace(WELL, lines=lines(SOCKETS), fabric=None)) == [("plain_sockets", "n1")]
    tcp = "n1:1:1 [0] NCCL INFO NET/OFI Selected Provider is tcp (found 1 nics)"
    assert told(replace(WELL, lines=lines(tcp), fabric="efa", nodes=())) == [("plain_sockets", None)]


OFF = lines("n1:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.")
HOT = gpus(97, 96, throttled={"hardware thermal slowdown": 0.6})
IDLE = tuple(replace(node, gpus=gpus(31, 30)) for node in WELL.nodes)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # A fabric that stands idle beside a busy interface.
        (nodes(second=replace(WELL.nodes[1], net={"eth0": 1.2e9, "mlx5_0:1": 100.0})), [("plain_sockets", "n2")]),
        (RunFacts(lines=lines(STAGED)), [("nvlink_unused", "n1")]),
        (RunFacts(lines=lines(BROKEN)), [("nvlink_unused", "n1")]),
        # NVLink that only the watcher saw.
        (replace(WELL, lines=OFF), [("nvlink_unused", "n1")]),
        (RunFacts(lines=OFF), []),
        (nodes(second=replace(WELL.nodes[1], gpus=HOT)), [("clocks_throttled", "n2")] * 2),
        # Nothing tells why.
        (replace(WELL, nodes=IDLE), [("gpus_idle", None)]),
    ],
)
def test_what_a_slow_run_is_told(facts: RunFacts, expected: list[tuple[str, str | None]]) -> None:
    assert told(facts) == expected


def test_a_node_behind_by_its_gpus() -> None:
    found = remarks(nodes(second=replace(WELL.nodes[1], gpus=gpus(55, 50))))
    assert [(remark.kind, remark.node) for remark in found] == [("node_behind", "n2")]
    assert "52 %" in found[0].text
    assert "--exclude n2" in found[0].todo


def test_one_gpu_behind() -> None:
    found = remarks(nodes(replace(WELL.nodes[0], gpus=gpus(98, 40))))
    assert [(remark.kind, remark.node) for remark in found] == [("node_behind", "n1")]
    assert found[0].text.startswith("GPU 1 of n1 is slower")


def test_a_rank_behind_by_where_it_stands() -> None:
    late = NodeSamples("n2", ranks({"hrtimer_nanosleep": 0.7, "running": 0.3}, first=2))
    found = remarks(replace(ON_CPUS, nodes=(NodeSamples("n1", ranks(WAITS, WAITS)), late)))
    assert [(remark.kind, remark.node, remark.rank) for remark in found] == [("node_behind", "n2", 2)]
    assert (
        "rank 2 on n2 is slower than the other ranks: waiting in 0% of the samples, the others in 90%" in found[0].text
    )
    slow = NodeSamples("n2", ranks(HERE, HERE, first=2))
    found = remarks(replace(ON_CPUS, nodes=(NodeSamples("n1", ranks(WAITS, WAITS, WAITS)), slow)))
    assert [(remark.node, remark.rank) for remark in found] == [("n2", None)]
    assert "ranks 2, 3 on n2 are slower" in found[0].text


def test_a_loader_that_starves() -> None:
    pinned = {"futex_do_wait": 0.8, "running": 0.2}
    starved = tuple(replace(node, gpus=gpus(31, 30), ranks=ranks(pinned, pinned)) for node in WELL.nodes)
    found = remarks(replace(WELL, nodes=starved))
    assert [remark.kind for remark in found] == ["loader_starved"]
    assert "only 30 %, and the ranks wait for data in 80% of the samples" in found[0].text
    polled = {"poll_schedule_timeout.constprop.0": 0.6, "running": 0.4}
    assert told(RunFacts((NodeSamples("n1", ranks(polled, polled)),))) == [("loader_starved", None)]
    found = remarks(replace(ON_CPUS, lines=lines(WORKERS)))
    assert [(remark.kind, remark.quotes[0].line) for remark in found] == [("loader_starved", 1)]


def test_from_the_files_of_an_attempt(tmp_path: Path) -> None:
    attempt = RunFolder(tmp_path).attempt(1)
    for folder in (attempt.logs, attempt.path / "agent"):
        folder.mkdir(parents=True)
    attempt.plan.write_text(json.dumps({"nodes": 2, "processes_per_node": 1, "fabric": "roce"}))
    attempt.start.write_text(json.dumps({"nodes": "gpu[1-2]"}))
    (attempt.logs / "node-1.log").write_bytes(b"\xff\n" + SOCKETS.encode())
    for node, mask in enumerate(("0x0000000000000004", "0x0000000000000048")):
        gpu = {"index": 0, "util": 99, "mem_mib": 70000, "temp_c": 60, "sm_mhz": 1980, "throttle": mask}
        sample = {"event": "sample", "places": {str(node): {"running": 3}}, "gpus": [gpu], "nvlinks": 0}
        sample["net_bytes_s"] = {"eth0": [10, 20]}
        starting = {**sample, "places": {str(node): {"futex_do_wait": 3}}}
        text = (
            "torn{\n"
            + 5 * (json.dumps(starting) + "\n")
            + 5 * (json.dumps(sample) + "\n")
            + '{"event": "sample", "gpus": 3, "places": [1]}\n'
        )
        (attempt.path / "agent" / f"node-{node}.jsonl").write_text(text)
    facts = gather(attempt)
    assert [(node.name, node.net, node.ranks) for node in facts.nodes] == [
        ("gpu1", {"eth0": 30}, (RankSamples(0, 15, {"running": 1.0}),)),
        ("gpu2", {"eth0": 30}, (RankSamples(1, 15, {"running": 1.0}),)),
    ]
    assert [(remark.kind, remark.node) for remark in attempt_remarks(attempt)] == [
        ("clocks_throttled", "gpu2"),
        ("plain_sockets", "gpu2"),
    ]
