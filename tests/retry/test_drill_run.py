"""The drill on this machine: good trainings, and those that are not ready for their end."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.requirements import REPOSITORY
from tests.here import launch

JOB: dict[str, Any] = {
    "name": "counting",
    "site": "local",
    "time": "00:10:00",
    "script": str(REPOSITORY / "tests" / "trainings" / "counting.py"),
    "args": {"folder": "${run.dir}/saved"},
    "progress": {"step": r"step (\d+)/(\d+)"},
    "checkpoint": {
        "signal_before": "30s",
        "dir": "${run.dir}/saved",
        "pattern": r"step-(\d+)",
        "resume": {"args": {"from": "${checkpoint.path}"}},
    },
    "drill": {"after": "1s", "set": {"args.pause": 0.05}},
}

pytestmark = pytest.mark.torch


def drill(tmp_path: Path, *words: str, job: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    (tmp_path / "job.yaml").write_text(json.dumps(job or JOB))
    return launch(tmp_path, "drill", "job.yaml", *words)


@pytest.mark.slow
def test_a_training_that_saves_and_goes_on_is_ready(tmp_path: Path) -> None:
    done = drill(tmp_path, "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["good"], found["fault"]) == (True, None)
    assert found["checkpoint_step"] >= found["warned_at_step"] > 0
    assert found["resumed_at_step"] == found["checkpoint_step"] + 1
    assert 0 <= found["saved_after_s"] < 30
    assert (tmp_path / "runs" / found["run"] / "attempts" / "002" / "cancel.json").exists()


@pytest.mark.slow
def test_a_training_that_begins_anew_is_not_ready(tmp_path: Path) -> None:
    done = drill(tmp_path, "--set", "checkpoint.resume.args.from=null")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "not ready: the next attempt began with step 1, although the checkpoint is at step" in done.stdout


@pytest.mark.slow
def test_a_training_that_ignores_the_warning_is_not_ready(tmp_path: Path) -> None:
    done = drill(tmp_path, "--set=args.listen=none", "--set=checkpoint.signal_before=3s")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "no checkpoint appeared, and the training did not end within 3 s of the warning" in done.stdout


@pytest.mark.prove
@pytest.mark.slow
def test_a_training_that_runs_to_its_end_despite_the_warning_is_not_ready(tmp_path: Path) -> None:
    done = drill(tmp_path, "--set=args.listen=none", "--set=args.every=10", "--set=args.steps=60")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "not ready: the training ignored the warning and ran to its last step, 60: make it longer" in done.stdout


@pytest.mark.slow
def test_a_periodic_save_is_not_credited_to_the_warning(tmp_path: Path) -> None:
    """The training ends at the warning without saving; only every seventh step is saved."""
    done = drill(tmp_path, "--set=args.quit=true", "--set=args.every=7")

    assert done.returncode == 1, done.stdout + done.stderr
    none, periodic = "no checkpoint appeared after the warning", "the checkpoint of step [0-9]+ (is|may be) a periodic"
    assert re.search(f"not ready: ({none}|{periodic})", done.stdout), done.stdout


@pytest.mark.prove
@pytest.mark.slow
def test_a_training_that_the_signal_kills_is_not_ready(tmp_path: Path) -> None:
    done = drill(tmp_path, "--set=args.listen=none", "--set=checkpoint.warn=USR1")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "not ready: no checkpoint appeared after the warning: it ended (the training ended with exit" in done.stdout


@pytest.mark.prove
@pytest.mark.slow
def test_a_pattern_that_fits_a_name_in_part_is_told(tmp_path: Path) -> None:
    done = drill(tmp_path, "--set=checkpoint.pattern=ste(p)")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "no checkpoint appeared after the warning: `checkpoint.pattern` (ste(p)) has to match" in done.stdout


def test_a_job_that_shows_neither_steps_nor_checkpoints_is_refused(tmp_path: Path) -> None:
    done = drill(tmp_path, job={"name": "x", "site": "local", "command": "true"})

    assert done.returncode == 3
    assert done.stderr.count("HL513") == 2
    assert not (tmp_path / "runs").exists()


def test_this_machine_preempts_nothing(tmp_path: Path) -> None:
    done = drill(tmp_path, "--preempt")

    assert done.returncode == 2
    assert "--preempt requires Slurm" in done.stderr
