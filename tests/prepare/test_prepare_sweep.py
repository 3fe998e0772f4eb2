"""Findings about the points of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.prepare.prepare_sweep import prepare_sweep


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
