"""`explain` of directives, and of a job whose site is another machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.forked import hpc_launch_text

SITE = """\
name: here
scheduler: slurm
detect: [{path: /}]
node_classes: {gpu: {cpus: 64, memory: 512G, gpus: 8}}
queues: {gpu: {node_class: gpu, partition: gpu}}
"""
JOB = "name: x\nsite: here\ntime: 20:00:00\nscript: train.py\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "here.yaml").write_text(SITE)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path / "sites"))
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--cpus-per-task"], r"--cpus-per-task = 64 "),
        (["--cpus-per-task", "--json"], r'"value": "64"'),
        (["--site", "here", "--time"], r"--time = 20:00:00 "),
    ],
)
def test_a_directive_is_written_as_in_the_script(folder: Path, asked: list[str], said: str) -> None:
    done = hpc_launch_text(["explain", "job.yaml", *asked], cwd=folder, env=dict(os.environ), timeout=90)
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout), done.stdout


@pytest.mark.parametrize("verb", ["render", "validate", "plan", "explain"])
def test_what_render_accepts_is_checked_and_explained_on_a_laptop(folder: Path, verb: str) -> None:
    profile = SITE.replace("detect: [{path: /}]", "detect: [{host: 'login*.centre'}]")
    (folder / "sites" / "here.yaml").write_text(profile)
    (folder / "job.yaml").write_text(JOB + "environment: {venv: /nowhere/venv}\n")
    done = hpc_launch_text([verb, "job.yaml"], cwd=folder, env=dict(os.environ), timeout=90)
    assert done.returncode == 0, done.stderr
