"""What the shipped profiles refuse, add and warn of, without a cluster: limits, accounts, options, links, images."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.script.parts import MARKER
from hpc_launch.script.render import render
from hpc_launch.sites.load_layers import load
from tests.sites.shipped import GOLDEN, known_surroundings, plan_of, planned

__all__ = ["known_surroundings"]


@pytest.mark.parametrize(
    ("site", "sets", "code", "words"),
    [
        ("frontier", ["nodes=10", "time=3h"], "HL402", "exceeds the limit of queue `batch` for 10 nodes, 02:00:00"),
        ("frontier", ["nodes=9473"], "HL407", "does not accept 9473 nodes"),
        ("frontier", ["account=null"], "HL303", "requires an account"),
        ("lumi-g", ["account=my_project"], "HL303", "does not match the accounts"),
        ("fir", ["account=mine"], "HL303", "does not match the accounts"),
        ("clariden", ["queue=debug", "nodes=4", "time=30m"], "HL544", "exceed the 90 node-minutes"),
        ("clariden", ["sbatch.environment=pytorch"], "HL540", "forbids `--environment`"),
        ("roihu", ["queue=gpumedium"], "HL545", "8 GPUs in total requested; queue `gpumedium` accepts 1-4"),
        ("roihu", ["nodes=1", "gpus_per_node=1"], "HL545", "accepts 4-"),
        ("mila", ["queue=main"], "HL545", "accepts 1-2"),
        ("trillium-gpu", ["gpus_per_node=2"], "HL545", "offers 1 or 4"),
        ("tamia", ["gpus_per_node=2"], "HL545", "offers 4"),
        ("tamia", ["account=def-abc"], "HL303", "does not match the accounts"),
        ("vista", ["sbatch.gres=gpu:1"], "HL540", "forbids `--gres`"),
        ("vista", ["memory=64G"], "HL547", "does not accept memory requests"),
        ("vista", ["gpus_per_node=4"], "HL401", "4 GPUs per node requested"),
        ("lonestar6", ["queue=gpu-h100"], "HL407", "does not accept 2 nodes"),
        ("archer2-gpu", ["nodes=3"], "HL407", "does not accept 3 nodes"),
        ("delta", ["queue=gpuH200x8"], "HL407", "does not accept 2 nodes"),
        ("kestrel", ["nodes=40", "time=3-00:00:00"], "HL402", "limit of queue `gpu` for 40 nodes, 2-00:00:00"),
        ("dawn", [], "HL409", "its 2 nodes and its time limit of 00:15:00 cannot be checked"),
        ("dawn", ["nodes=1"], "HL409", "so that its time limit of 00:15:00 cannot be checked"),
        ("sherlock", ["queue=owners"], "HL409", "so that its 2 nodes cannot be checked"),
        ("kempner", ["nodes=5"], "HL545", "20 GPUs in total requested; queue `kempner_h100` allows 16 per user"),
        ("jean-zay", ["account=abc@cpu"], "HL303", "does not match the accounts"),
        ("mahti", [], "HL318", "will be retired on 2026-08-31"),
        ("archer2-gpu", [], "HL318", "will be retired on 2026-11-20"),
        ("frontier", ["launcher=torchrun"], "HL549", "advises against the launcher `torchrun`"),
        ("clariden", ["env.NCCL_NET_PLUGIN=ofi"], "HL543", "conflicts with"),
        ("frontier", ["env.FI_MR_CACHE_MONITOR=memhooks"], "HL543", "memhooks can deadlock"),
        ("lumi-g", ["container=pytorch", "env.NCCL_NET_GDR_LEVEL=PHB"], "HL543", "jobs of several nodes can hang"),
        ("narval", ["env.NCCL_IB_DISABLE=1", "env.NCCL_IB_HCA=mlx5_0"], "HL543", "disables the fast network"),
    ],
)
def test_the_site_says_what_is_wrong(site: str, sets: list[str], code: str, words: str) -> None:
    _, findings = planned(site, *sets)
    said = [f"{finding.code} {finding.message}" for finding in findings]
    assert any(line.startswith(code) and words in line for line in said), said


@pytest.mark.parametrize(
    ("site", "sets", "lines"),
    [
        ("frontier", ["nodes=200", "time=12h"], ["#SBATCH --network=disable_rdzv_get", "#SBATCH --nodes=200"]),
        ("jean-zay", [], ["#SBATCH --account=abc@h100", "#SBATCH --constraint=h100", "module load arch/h100"]),
        ("jean-zay", ["queue=a100"], ["#SBATCH --account=abc@a100", "#SBATCH --gres=gpu:8", "module load arch/a100"]),
        ("jean-zay", ["account=abc@h100"], ["#SBATCH --account=abc@h100 "]),
        ("perlmutter", ["queue=regular-80gb"], ["#SBATCH --constraint=gpu&hbm80g"]),
        ("perlmutter", [], ["export CUDA_VISIBLE_DEVICES=3,2,1,0"]),
        ("delta", ["options=[needs-scratch, needs-taiga]"], ["#SBATCH --constraint=scratch&taiga"]),
        ("frontier", ["options=[nvme]"], ["#SBATCH --constraint=nvme"]),
        ("frontier", ["args.data=${paths.nvme}/x"], ["#SBATCH --constraint=nvme"]),
        ("clariden", [], ["export NCCL_PROTO='^LL128'"]),
        ("snellius", ["queue=gpu_a100", "nodes=1", "gpus_per_node=1"], ["#SBATCH --cpus-per-task=18"]),
        ("lumi-g", [], ["export NCCL_NET='AWS Libfabric'"]),
        ("frontier", [], ["export NCCL_NET=OFI"]),
        ("clariden", ["options=[if-it-hangs]"], ["export FI_CXI_RDZV_THRESHOLD=0"]),
        (
            "clariden",
            ["container=pytorch", "options=[extended-image]"],
            ["#SBATCH --network=disable_rdzv_get", "export SLURM_MPI_TYPE=pmix"],
        ),
        ("narval", [], ["export HF_HUB_OFFLINE=1", "#SBATCH --gpus-per-node=a100:4"]),
        ("juwels-booster", [], ["export HF_HUB_OFFLINE=1", "    MASTER_ADDR=${hosts[0]}i"]),
        ("mila", ["launcher=srun"], ["--gres-flags=allow-task-sharing"]),
        (
            "lumi-g",
            ["queue=small-g", "nodes=1", "gpus_per_node=2"],
            ["#SBATCH --cpus-per-task=14", "#SBATCH --mem=120G"],
        ),
        ("lumi-g", ["launcher=srun"], ["--cpu-bind=mask_cpu:0x00fe000000000000,"]),
        ("lumi-g", ["launcher=srun", "gpus_per_node=4"], ["--cpu-bind=mask_cpu:", "--ntasks-per-node=4"]),
    ],
)
def test_the_script_has_what_the_site_wants(site: str, sets: list[str], lines: list[str]) -> None:
    script = render(plan_of(site, *sets))
    assert [line for line in lines if line not in script] == []


@pytest.mark.parametrize(
    ("site", "sets", "line"),
    [
        ("clariden", [], "FI_CXI_RDZV_"),
        ("fir", [], "HF_HUB_OFFLINE"),
        ("perlmutter", ["launcher=torchrun"], "CUDA_VISIBLE_DEVICES"),
        ("lumi-g", ["launcher=srun", "queue=small-g", "nodes=1", "gpus_per_node=2"], "mask_cpu"),
        ("vista", [], "--mem"),
        ("snellius", ["queue=gpu_a100"], "--exclusive"),
        ("lumi-g", ["nodes=1"], "NCCL_NET="),
        ("santis", [], "#SBATCH --gpus"),
        ("isambard-ai", ["account=null"], "#SBATCH --account"),
    ],
)
def test_the_script_has_nothing_that_does_not_belong(site: str, sets: list[str], line: str) -> None:
    assert line not in render(plan_of(site, *sets)).partition(MARKER)[0]


def test_an_image_for_another_processor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path / "hpc-launch" / "user.yaml"
    user.parent.mkdir()
    image = "{containers: {images: {pytorch: {path: /a.toml, arch: x86_64}}}}"
    user.write_text(f"defaults: {{account: abc}}\nprofiles: {{clariden: {image}, bristen: {image}}}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "HL470" in [finding.code for finding in planned("clariden", "container=pytorch")[1]]
    assert "HL470" not in [finding.code for finding in planned("bristen", "container=pytorch")[1]]


def test_what_is_said_of_one_system_is_not_said_of_those_that_build_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nextends: frontier\n")
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    there, mine = (
        load(GOLDEN / "job.yaml", site=site, sets=["account=a"]).resolved.site for site in ("frontier", "mine")
    )
    assert there.published
    assert there.unknown
    assert not mine.published
    assert not mine.unknown
    assert mine.queues == there.queues
