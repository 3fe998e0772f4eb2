"""A folder with a job file and a training, as the current one, and runs and settings of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

TRAIN = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-3)
options = parser.parse_args()
for step in range(1, options.steps + 1):
    print(f"step {step}/{options.steps} loss {options.lr / step:g}", flush=True)
"""
JOB = """
name: from-file
site: local
launcher: none
script: train.py
args: {steps: 2}
time: 00:05:00
hang: false
retry: 1
progress: {step: 'step (\\d+)/(\\d+)', loss: 'loss (\\S+)'}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "HPC_LAUNCH_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(TRAIN)
    (folder / "job.yaml").write_text(JOB)
    return folder
