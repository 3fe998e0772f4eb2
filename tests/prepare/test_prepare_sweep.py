"""Findings about the points of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.prepare.prepare_sweep import prepare_sweep
from tests.slurm.user import PROFILES


def refusals(folder: Path, sweep: str) -> list[str]:
    job = folder / "job.yaml"
    (folder / "train.py").touch()
    job.write_text(f"name: x\nscript: train.py\nsweep: {sweep}\n")
    with pytest.raises(Refused) as refused:
        prepare_sweep(job, site="local", sets=["env.X=1"])
    return [str(finding).replace(str(folder), "") for finding in refused.value.findings]


def test_an_invalid_value_is_found_in_the_job_file(tmp_path: Path) -> None:
    first, _second = refusals(tmp_path, "{grid: {processes_per_node: [1, 0, -1]}}")
    assert first.startswith("/job.yaml:3:8: HL013 point 1 (processes_per_node=0): ")


def test_a_secret_is_refused_once_and_not_shown(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, "{grid: {env.HF_TOKEN: [hf_one, hf_two]}}")
    assert "HL211 point 0 (HF_TOKEN=…)" in found
    assert "hf_" not in found


SHARED = [
    ("args.lr: [1e-3, 2, -0.5]", True),
    ("args.lr: [1, 2, 3]}, zip: {args.seed: [1, 2], args.steps: [3, 4]", True),
    ("args.lr: [1, 2, fast]", False),
    ("args.lr: [1, 2]", False),  # too few to compare
    ("env.LR: [1, 2, 3]", False),
    ("args.micro_batch_size: [1, 2, 3]", False),  # the next attempt may change it
    ("nodes: [1, 2, 3]", False),
    ("args: [[1], [2], [3]]", False),
]


@pytest.mark.parametrize(("grid", "shared"), SHARED)
def test_points_that_differ_in_numbers_share_a_plan(
    grid: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(PROFILES))
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\nlauncher: none\ncommand: [sh]\ntime: 5\nsweep: {{grid: {{{grid}}}}}\n")
    sweep = prepare_sweep(job, site="testcluster")
    assert (len({id(one.job) for one in sweep.jobs.values()}) == 1) is shared
