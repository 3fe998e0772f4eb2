"""The table of what can be launched how: each cell, and by what it is known to hold.

`docs/generate_launch_table.py` makes docs/evidence/launch-table.md of this, and `tests.table.test_cells` renders each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

LAUNCHERS: dict[str, dict[str, str]] = {
    "torchrun, static": {"name": "torchrun"},
    "torchrun, c10d": {"name": "torchrun", "rendezvous": "c10d"},
    "ft_launcher": {"name": "ft_launcher"},
    "deepspeed, no ssh": {"name": "deepspeed", "multinode": "no_ssh"},
    "deepspeed, pdsh": {"name": "deepspeed", "multinode": "pdsh"},
    "srun": {"name": "srun"},
    "none": {"name": "none"},
}

STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {"strategy": "none"},
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": {"name": "fsdp", "for": "accelerate"}},
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2"},
    "zero3": {"strategy": "zero3"},
    "megatron": {"strategy": "megatron", "parallel": {"tp": 2}},
}
"""What the job file says beside the launcher. With ZeRO its arguments name `${strategy.config}`."""

RUNTIMES = ("none", "apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud")

VENDORS = ("nvidia", "amd", "none")
"""Whose GPUs the nodes have; `none`: the training runs on CPUs."""

REFUSED = {
    "deepspeed, pdsh": ("HL485", "DeepSpeed's ssh starts processes outside the container"),
    "none": ("HL426", "the program starts its own processes, which is impossible from inside a container"),
}
"""Launchers that refuse every image on several nodes: the finding, and why."""

_WITHOUT_SRUN = "tests/slurm/test_without_srun.py::"
_TABLE = "tests/slurm/test_table.py::"
_IN_TURN = f"{_TABLE}test_ddp_fsdp_and_zero_in_turn"
_IN_AN_IMAGE = f"{_TABLE}test_ddp_fsdp_and_zero_in_an_image"
_RANK_FAILS = "tests/slurm/test_launchers.py::test_a_rank_that_fails_ends_the_others_and_its_code_comes_out"
_IMAGES = "tests/slurm/test_apptainer_images.py::"

RUN: dict[tuple[str, str], dict[str, str]] = {
    ("torchrun, static", "none"): {
        "none": f"{_RANK_FAILS}[static]",
        "ddp": f"{_TABLE}test_pytorchs_own_strategies[ddp]",
        "fsdp": f"{_TABLE}test_pytorchs_own_strategies[fsdp]",
        "zero2": f"{_TABLE}test_zero_by_the_file_that_the_job_wrote[2-torchrun]",
        "zero3": f"{_TABLE}test_zero_by_the_file_that_the_job_wrote[3-torchrun]",
        "megatron": "tests/examples/test_run.py::test_openseek_has_a_stage_on_each_node_and_slices_inside",
    },
    ("torchrun, static", "apptainer"): {
        "ddp": f"{_IN_AN_IMAGE}[static-3]",
        "fsdp": f"{_IN_AN_IMAGE}[static-3]",
        "zero3": f"{_IN_AN_IMAGE}[static-3]",
    },
    ("torchrun, c10d", "none"): {
        "none": f"{_RANK_FAILS}[c10d]",
        "ddp": f"{_IN_TURN}[c10d-1]",
        "fsdp": f"{_IN_TURN}[c10d-1]",
        "zero1": f"{_IN_TURN}[c10d-1]",
    },
    ("torchrun, c10d", "apptainer"): {
        "ddp": f"{_IN_AN_IMAGE}[c10d-2]",
        "fsdp": f"{_IN_AN_IMAGE}[c10d-2]",
        "zero2": f"{_IN_AN_IMAGE}[c10d-2]",
    },
    ("deepspeed, no ssh", "none"): {
        "zero1": f"{_TABLE}test_zero_by_the_file_that_the_job_wrote[1-deepspeed]",
        "zero2": f"{_TABLE}test_zero_by_the_file_that_the_job_wrote[2-deepspeed]",
        "zero3": f"{_TABLE}test_zero_by_the_file_that_the_job_wrote[3-deepspeed]",
    },
    ("deepspeed, no ssh", "apptainer"): dict.fromkeys(
        ("zero1", "zero2", "zero3"), f"{_TABLE}test_zero_by_deepspeed_in_an_image"
    ),
    ("deepspeed, pdsh", "none"): {
        "none": f"{_WITHOUT_SRUN}test_the_exit_code_of_a_failing_rank_comes_out_and_the_others_end",
        "zero1": f"{_WITHOUT_SRUN}test_the_example_trains_on_two_nodes",
        **dict.fromkeys(("zero2", "zero3"), f"{_TABLE}test_zero_by_deepspeed_over_ssh"),
    },
    ("srun", "none"): {
        "none": f"{_RANK_FAILS}[srun]",
        "ddp": f"{_IN_TURN}[srun-3]",
        "fsdp": f"{_IN_TURN}[srun-3]",
        "zero3": f"{_IN_TURN}[srun-3]",
    },
    ("srun", "apptainer"): {
        "none": f"{_IMAGES}test_srun_starts_each_process_in_the_image",
        "ddp": f"{_IN_AN_IMAGE}[srun-1]",
        "fsdp": f"{_IN_AN_IMAGE}[srun-1]",
        "zero1": f"{_IN_AN_IMAGE}[srun-1]",
    },
    ("none", "none"): {"none": "tests/examples/test_own_start.py::test_it_runs_once_and_its_srun_fills_the_job"},
}
"""By launcher and runtime: the test that shows a strategy on two nodes or more of a real Slurm, on CPUs."""


@dataclass(frozen=True)
class Cell:
    """One launch; its parts are keys of the mappings above."""

    launcher: str
    strategy: str
    runtime: str
    vendor: str

    @property
    def refused(self) -> tuple[str, str] | None:
        """The finding that refuses it, and why."""
        return REFUSED.get(self.launcher) if self.runtime != "none" else None

    @property
    def run(self) -> str | None:
        """The test that runs it for real."""
        tests = RUN.get((self.launcher, self.runtime), {}) if self.vendor == "none" else {}
        return tests.get(self.strategy)

    @property
    def job(self) -> dict[str, Any]:
        """The job file, for the sites of the test."""
        own = STRATEGIES[self.strategy]
        zero = self.strategy.startswith("zero")
        image = "/images/torch.sif" if self.runtime in ("apptainer", "singularity", "charliecloud") else "torch"
        return {
            "name": "cell",
            "site": self.vendor,
            "nodes": 2,
            "launcher": LAUNCHERS[self.launcher],
            **({"container": {"image": image, "runtime": self.runtime}} if self.runtime != "none" else {}),
            **({"processes_per_node": 4} if self.vendor == "none" else {}),
            **own,
            "script": "train.py",
            "args": {"deepspeed_config": "${strategy.config}"} if zero else {},
            "env": {"HCA": "mlx5_0,mlx5_1"},
        }

    def __str__(self) -> str:
        return "-".join((self.launcher.replace(", ", "_").replace(" ", "_"), self.strategy, self.runtime, self.vendor))


def cells() -> Iterator[Cell]:
    """Every cell of the table."""
    for parts in product(LAUNCHERS, STRATEGIES, RUNTIMES, VENDORS):
        yield Cell(*parts)
