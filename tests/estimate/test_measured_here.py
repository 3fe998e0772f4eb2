"""The predicted memory of parameters, gradients and optimizer states, compared with what real processes hold."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_launch.estimate.memory import memory
from hpc_launch.estimate.training_setup import Sharding, TrainingSetup
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import ModelConfig

PROGRAM = Path(__file__).parent.parent / "trainings" / "measured_states.py"
SHARDING: dict[str, Sharding] = {"ddp": "none", "fsdp": "fsdp2", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3"}
MODELS = [
    {"layers": 2, "hidden": 256, "ffn": 688, "vocab": 2048, "heads": 8, "query_groups": 4, "head_dim": 32},
    {"layers": 6, "hidden": 128, "ffn": 512, "vocab": 1024, "heads": 4, "query_groups": 4, "head_dim": 32},
    {"layers": 3, "hidden": 192, "ffn": 512, "vocab": 512, "heads": 6, "query_groups": 2, "head_dim": 48},
]
"""The second has no grouped queries; in the third, heads are wider than the hidden size divided by their number."""


def predicted(strategy: str, sizes: dict[str, int], processes: int) -> int:
    """Bytes of the states on each rank."""
    setup = TrainingSetup(
        layout=ParallelLayout(Parallel(), processes),
        sequence=8,
        sharding=SHARDING[strategy],
        framework="deepspeed" if strategy.startswith("zero") else "pytorch",
    )
    return memory(ModelConfig(**sizes, gated=True, tied=False), setup).states  # type: ignore[arg-type]


def compare(strategies: list[str], models: list[dict[str, int]], processes: int, folder: Path) -> None:
    """The prediction with the peak of each rank, strategy and model."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [*command, str(PROGRAM), ",".join(strategies), json.dumps(models), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [one for rank in range(processes) for one in json.loads((folder / f"{rank}.json").read_text())]
    assert len(found) == len(strategies) * len(models) * processes
    for one in found:
        expected = predicted(one["strategy"], one["sizes"], processes)
        assert expected == pytest.approx(one["peak"], rel=0.05), (one, processes)


@pytest.mark.prove
@pytest.mark.torch
def test_the_states_of_one_model(tmp_path: Path) -> None:
    compare(["ddp", "fsdp"], [random.Random(15).choice(MODELS)], 2, tmp_path)


@pytest.mark.prove
@pytest.mark.torch("deepspeed")
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_the_states_under_every_strategy(tmp_path: Path, processes: int) -> None:
    compare([*SHARDING], MODELS, processes, tmp_path)
