"""The table of docs/how-to/choosing-a-layout.md is what the comparison of layouts recommends."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.estimate.compare_layouts import ComparedLayout, compare_layouts, recommended
from hpc_launch.estimate.gpu import Gpu
from hpc_launch.estimate.training_setup import Framework, TrainingSetup
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import Experts, ModelConfig
from hpc_launch.model.read_model import known_model
from tests.estimate.measured_steps import TORCHTITAN, gpu

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "choosing-a-layout.md"
START, END = "<!-- layouts -->\n", "<!-- end of layouts -->\n"
FRAMEWORKS: dict[Framework, str] = {"pytorch": "PyTorch", "deepspeed": "DeepSpeed", "megatron": "Megatron"}

LLAMA_1B = replace(TORCHTITAN["8"], layers=16, hidden=2048, ffn=8192, head_dim=64, tied=True)
LLAMA_8B, LLAMA_70B = TORCHTITAN["8"], TORCHTITAN["70"]
MIXTRAL = replace(LLAMA_8B, vocab=32000, experts=Experts(count=8, per_token=2, ffn=14336))
GPT2, DEEPSEEK_V3 = (known_model(name, None)[0] or MIXTRAL for name in ("gpt2", "deepseek-v3"))

A100_40 = replace(gpu("a100", 40 * 1024), per_node=4)
A100, H100 = gpu("a100", 80 * 1024), gpu("h100", 80 * 1024)
ETHERNET = replace(A100, network_bandwidth=25e9 / 8)


class Case(Struct, frozen=True):
    model: str
    config: ModelConfig
    sequence: int
    batch: int
    """Samples per step."""
    hardware: str
    gpu: Gpu
    gpus: int


CASES = [
    Case("GPT-2, 124 million", GPT2, 1024, 512, "A100 40 GB", A100_40, 1),
    Case("GPT-2, 124 million", GPT2, 1024, 512, "A100 40 GB", A100_40, 16),
    Case("Llama 3, 1 billion", LLAMA_1B, 4096, 256, "A100 40 GB", A100_40, 4),
    Case("Llama 3, 8 billion", LLAMA_8B, 8192, 128, "A100 40 GB", A100_40, 4),
    Case("Llama 3, 8 billion", LLAMA_8B, 8192, 128, "A100 80 GB", A100, 8),
    Case("Llama 3, 8 billion", LLAMA_8B, 8192, 512, "H100 80 GB", H100, 128),
    Case("Llama 3, 8 billion", LLAMA_8B, 8192, 512, "A100 80 GB, 25 Gb/s", ETHERNET, 32),
    Case("Llama 3, 8 billion", LLAMA_8B, 131072, 64, "H100 80 GB", H100, 64),
    Case("Llama 3, 70 billion", LLAMA_70B, 8192, 128, "A100 80 GB", A100, 8),
    Case("Llama 3, 70 billion", LLAMA_70B, 8192, 128, "A100 80 GB", A100, 32),
    Case("Llama 3, 70 billion", LLAMA_70B, 8192, 1024, "H100 80 GB", H100, 512),
    Case("Llama 3, 70 billion", LLAMA_70B, 131072, 64, "H100 80 GB", H100, 256),
    Case("Llama 3.1, 405 billion", TORCHTITAN["405"], 8192, 2048, "H100 80 GB", H100, 4096),
    Case("Mixtral 8x7B", MIXTRAL, 4096, 1024, "A100 80 GB", A100, 64),
    Case("DeepSeek-V3, 671 billion", DEEPSEEK_V3, 4096, 4096, "H100 80 GB", H100, 1024),
]


def _recommended(case: Case, framework: Framework) -> ComparedLayout | None:
    """DeepSpeed with the optimizer, and then the weights on the host only if nothing else fits."""
    layout = ParallelLayout(Parallel(global_batch=case.batch), case.gpus)
    like = TrainingSetup(layout=layout, sequence=case.sequence, framework=framework)
    found = recommended(compare_layouts(case.config, like, case.gpu))
    if framework == "deepspeed":
        for weights in (False, True):
            offloading = replace(like, offload_optimizer=True, offload_parameters=weights)
            found = found or recommended(compare_layouts(case.config, offloading, case.gpu))
    return found


def _text(layout: ComparedLayout) -> str:
    setup, parallel = layout.setup, layout.setup.layout.parallel
    sizes = {"TP": parallel.tp, "PP": parallel.pp, "VPP": parallel.vpp or 1, "CP": parallel.cp, "EP": parallel.ep}
    parts = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    shared = {"fsdp2": "FSDP", "hsdp": "HSDP", "distributed_optimizer": "distributed optimizer"}
    if setup.sharding != "none":
        parts.append(shared.get(setup.sharding, setup.sharding.replace("zero", "ZeRO-")))
    elif setup.layout.dp > 1:
        parts.append("DDP")
    elif not parts:
        parts.append("one process")
    if setup.offload_optimizer:
        parts.append("optimizer and weights on the host" if setup.offload_parameters else "optimizer on the host")
    if setup.recompute != "none":
        parts.append(f"{setup.recompute} recomputation")
    return ", ".join([*parts, f"micro batch {parallel.micro_batch}"])


def _row(case: Case) -> str:
    found = {framework: _recommended(case, framework) for framework in FRAMEWORKS}
    fastest = min(layout.step_s for layout in found.values() if layout is not None)
    cells = [case.model, f"{case.sequence:,}", f"{case.gpus} {case.hardware}"]
    for layout in found.values():
        cells.append("does not fit" if layout is None else f"{_text(layout)} ({layout.step_s / fastest:.1f})")
    return "| " + " | ".join(cells) + " |\n"


def test_table(request: pytest.FixtureRequest) -> None:
    head = ["Model", "Sequence", "GPUs", *FRAMEWORKS.values()]
    lines = ["| " + " | ".join(head) + " |\n", "|" + "---|" * len(head) + "\n"]
    table = "".join([*lines, *(_row(case) for case in CASES)])
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(START)
    shown, after = rest.split(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(before + START + table + END + after, encoding="utf-8")
    else:
        assert shown == table, "the estimates changed: run with --update-golden and review the table"
