"""Find the figures of a GPU by what profiles and drivers call it."""

import pytest

from hpc_launch.base.findings import Place
from hpc_launch.estimate.gpu import Gpu, Unknown, find_gpu, gpu_of_node_class, published_gpus
from hpc_launch.sites.read_profile import load_site_profile


@pytest.mark.parametrize(
    ("names", "memory", "expected"),
    [
        (["a100"], 40 * 1024, "A100 SXM 40 GB"),
        (["a100l"], 80 * 1024, "A100 SXM 80 GB"),
        (["NVIDIA A100-SXM4-40GB"], None, "A100 SXM 40 GB"),
        (["NVIDIA A100 80GB PCIe"], None, "A100 PCIe 80 GB"),
        (["h100-80"], None, "H100 SXM 80 GB"),
        (["NVIDIA H100 80GB HBM3"], 81559, "H100 SXM 80 GB"),
        (["NVIDIA H100 PCIe"], 81559, "H100 PCIe 80 GB"),
        (["", "h100", "two H100 NVL"], 94 * 1024, "H100 NVL 94 GB"),
        (["NVIDIA GH200 480GB"], 97871, "GH200 96 GB"),
        (["NVIDIA GB200"], 189471, "GB200 186 GB"),
        (["NVIDIA B200"], 183359, "B200 180 GB"),
        (["Tesla V100-SXM2-32GB"], 32768, "V100 SXM2 32 GB"),
        (["l40s"], 48 * 1024, "L40S 48 GB"),
        (["AMD Instinct MI250X"], 64 * 1024, "MI250X (one of its two dies)"),
        (["", "pvc", "four Data Center GPU Max 1550"], 124 * 1024, "Data Center GPU Max 1550"),
    ],
)
def test_names(names: list[str], memory: int | None, expected: str) -> None:
    found = find_gpu(names, memory=memory, per_node=4)
    assert isinstance(found, Gpu)
    assert found.name == expected


@pytest.mark.parametrize(
    ("names", "memory", "reason"),
    [
        ([""], None, "the GPU's type is unknown"),
        (["rtx_pro_6000_blackwell"], 96 * 1024, "no figures for GPU rtx_pro_6000_blackwell"),
        (["a100"], None, "it may be any of: A100 SXM 40 GB, A100 SXM 80 GB"),
        (["a100"], 64 * 1024, "no figures for a GPU of 64 GiB among: A100 SXM 40 GB, A100 SXM 80 GB"),
        (["A100 and H100"], 80 * 1024, "the name fits a100 and h100"),
        (["h1000"], None, "no figures for GPU h1000"),
    ],
)
def test_unknown(names: list[str], memory: int | None, reason: str) -> None:
    found = find_gpu(names, memory=memory, per_node=4)
    assert isinstance(found, Unknown)
    assert found.reason == reason


def test_the_network_is_that_of_the_site() -> None:
    found = find_gpu(["h100"], memory=80 * 1024, per_node=8, fabric="slingshot")
    assert isinstance(found, Gpu)
    assert found.network_bandwidth == 25e9
    assert found.memory == 81559 * 1024 * 1024


@pytest.mark.parametrize(
    ("site", "node_class", "expected"),
    [
        ("lonestar6", "h100", "H100 PCIe 80 GB"),
        ("jupiter", "gh200", "GH200 96 GB"),
        ("lumi-g", "mi250x", "MI250X (one of its two dies)"),
        ("leonardo", "a100", None),
        ("snellius", "a100", "A100 SXM 40 GB"),
        ("kebnekaise", "a100", None),
    ],
)
def test_shipped_profiles(site: str, node_class: str, expected: str | None) -> None:
    profile = load_site_profile(site, Place("job.yaml"))
    found = gpu_of_node_class(node_class, profile.node_classes[node_class], profile.fabric)
    assert (found.name if isinstance(found, Gpu) else None) == expected


def test_every_row_is_found_by_its_own_name() -> None:
    for row in published_gpus():
        found = find_gpu([row.name], memory=row.memory, per_node=8)
        assert isinstance(found, Gpu)
        assert found.name == row.name
        assert row.source
