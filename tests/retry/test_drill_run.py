"""The drill on this machine: good trainings, and those that are not ready for their end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.here import launch
from tests.marks import prove
from tests.prove.rounds import processes

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


def end_late(tmp_path: Path) -> None:
    """Let the job run on for a few seconds when its training has ended."""
    wait_until(lambda: any(tmp_path.glob("runs/*/attempts/001/stop")), timeout=120, every=0.05)
    supervisors = [one.number for one in processes(str(tmp_path)) if "supervisor" in one.command]
    for number in supervisors:
        os.kill(number, signal.SIGSTOP)
    wait_until(lambda: any(tmp_path.glob("runs/*/attempts/001/end.json")), timeout=120, every=0.1)
    time.sleep(4)
    for number in supervisors:
        os.kill(number, signal.SIGCONT)


@pytest.mark.slow
def test_a_training_that_saves_and_goes_on_is_ready_though_its_job_ends_late(tmp_path: Path) -> None:
    late = threading.Thread(target=end_late, args=(tmp_path,))
    late.start()
    done = drill(tmp_path, "--json")
    late.join()

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["good"], found["fault"]) == (True, None)
    assert found["checkpoint_step"] >= found["warned_at_step"] > 0
    assert found["resumed_at_step"] == found["checkpoint_step"] + 1
    assert 0 <= found["saved_after_s"] < 30
    assert (tmp_path / "runs" / found["run"] / "attempts" / "002" / "cancel.json").exists()


NOT_READY = {
    "it begins anew": (
        ["checkpoint.resume.args.from=null", "launcher=none"],
        "not ready: the next attempt began with step 1, although the checkpoint is at step",
    ),
    "it ignores the warning": (
        ["args.listen=none", "checkpoint.signal_before=3s"],
        "no checkpoint appeared, and the training did not end within 3 s of the warning",
    ),
    # It ends at the warning without saving; only every seventh step is saved.
    "it saves periodically": (
        ["args.quit=true", "args.every=7"],
        r"not ready: (no checkpoint appeared after the warning|the checkpoint of step \d+ (is|may be) a periodic)",
    ),
    "it runs to its end despite the warning": (
        ["args.listen=none", "args.every=10", "args.steps=60"],
        "not ready: the training ignored the warning and ran to its last step, 60: make it longer",
    ),
    "the signal kills it": (
        ["args.listen=none", "checkpoint.warn=USR1"],
        r"not ready: no checkpoint appeared after the warning: it ended \(the training ended with exit",
    ),
    "the pattern fits a name in part": (
        ["checkpoint.pattern=ste(p)"],
        r"no checkpoint appeared after the warning: `checkpoint\.pattern` \(ste\(p\)\) has to match",
    ),
}
"""Options of `drill`, and what it says."""


@pytest.mark.slow
@pytest.mark.parametrize("case", [*list(NOT_READY)[:1], *map(prove, list(NOT_READY)[1:])])
def test_a_training_is_not_ready_where(tmp_path: Path, case: str) -> None:
    options, says = NOT_READY[case]
    done = drill(tmp_path, *(f"--set={option}" for option in options))

    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(says, done.stdout), done.stdout


def test_a_job_that_shows_neither_steps_nor_checkpoints_is_refused(tmp_path: Path) -> None:
    done = drill(tmp_path, job={"name": "x", "site": "local", "command": "true"})

    assert done.returncode == 3
    assert done.stderr.count("HL513") == 2
    assert not (tmp_path / "runs").exists()


def test_this_machine_preempts_nothing(tmp_path: Path) -> None:
    done = drill(tmp_path, "--preempt")

    assert done.returncode == 2
    assert "--preempt requires Slurm" in done.stderr
