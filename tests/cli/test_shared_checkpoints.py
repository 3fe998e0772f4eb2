"""`submit` and `drill` name active runs that save their checkpoints in the same folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.here import launch

pytestmark = pytest.mark.slow


def submit(folder: Path, name: str, saved: str) -> str:
    job = {"name": name, "command": "sleep 60", "checkpoint": {"dir": saved, "pattern": r"step-(\d+)"}}
    (folder / "job.yaml").write_text(json.dumps(job))
    done = launch(folder, "submit", "job.yaml", "--site", "local")
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_two_active_runs_with_one_checkpoint_folder(tmp_path: Path) -> None:
    try:
        assert "saves its checkpoints" not in submit(tmp_path, "one", str(tmp_path / "saved"))
        assert "saves its checkpoints" not in submit(tmp_path, "two", "${run.dir}/saved")
        assert "saves its checkpoints" not in submit(tmp_path, "three", "${run.dir}/saved")
        said = submit(tmp_path, "four", "saved/../saved")
        assert "warning: one-" in said
        assert f"saves its checkpoints in {tmp_path}/saved too" in said
        assert "use ${run.dir} in `checkpoint.dir`" in said
        assert said.count("saves its checkpoints") == 1
    finally:
        launch(tmp_path, "cancel", "one", "two", "three", "four")
    for name in ("one", "four"):
        launch(tmp_path, "watch", name)  # until it has ended
    assert "saves its checkpoints" not in submit(tmp_path, "five", str(tmp_path / "saved"))
    launch(tmp_path, "cancel", "five")


@pytest.mark.prove
@pytest.mark.torch
def test_a_drill_names_an_active_run_with_its_checkpoint_folder(tmp_path: Path) -> None:
    submit(tmp_path, "one", str(tmp_path / "saved"))
    sets = ("--set=name=trial", "--set=command=true", r"--set=progress.step=step (\d+)")
    try:
        done = launch(tmp_path, "drill", "job.yaml", "--site", "local", *sets)
        assert f"warning: the drill saves its checkpoints in {tmp_path}/saved, and other runs" in done.stderr
        assert "warning: one-" in done.stderr
    finally:
        launch(tmp_path, "cancel", "one", "trial")
