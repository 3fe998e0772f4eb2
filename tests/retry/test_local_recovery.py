"""Recovery as a person on this machine sees it: a real job, a real failure, and nobody who types anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forked import hpc_launch_text, inherited

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB"


class Shell:
    """A project, and hpc-launch in it."""

    def __init__(self, home: Path) -> None:
        self.project = home / "project"
        self.project.mkdir()
        self.env = {
            "PATH": os.environ["PATH"], "HOME": str(home), "HPC_LAUNCH_SITE": "local",
            "HPC_LAUNCH_HOME": str(home / "runs"), "XDG_STATE_HOME": str(home / "state"), **inherited(),
        }  # fmt: skip

    def call(self, *args: str) -> subprocess.CompletedProcess[str]:
        return hpc_launch_text(args, cwd=self.project, env=self.env, timeout=120)

    def write(self, job: str, train: str) -> None:
        (self.project / "train.py").write_text(train)
        (self.project / "job.yaml").write_text(f"name: tiny\nlauncher: torchrun\nscript: train.py\n{job}")

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.call("status", "@last", "--json").stdout)
        return answer


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# In place of torchrun, which takes seconds to start: the words behind the script are all that matters here.
PYTHON = "environment: {python: ./python}\n"


def stand_in(shell: Shell) -> None:
    """An interpreter that starts the script at once, without torchrun."""
    path = shell.project / "python"
    path.write_text(f'#!/bin/bash\nwhile [ "${{1##*/}}" != train.py ]; do shift; done\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)


@pytest.mark.slow
def test_out_of_memory_ends_well_with_a_smaller_micro_batch(shell: Shell) -> None:
    stand_in(shell)
    shell.write(
        PYTHON + "args: {micro_batch_size: 8, gradient_accumulation_steps: 2}\n",
        f"import sys\nif int(sys.argv[2]) > 2:\n    sys.exit('{OOM}')\nprint('trained with', sys.argv[1:])\n",
    )

    done = shell.call("submit", "job.yaml", "--wait")

    assert done.returncode == 0, done.stdout + done.stderr
    attempts = shell.status()["attempts"]
    assert [(one["class"], one["verdict"]) for one in attempts] == [
        ("cuda_oom", "RETRY_CHANGED"), ("cuda_oom", "RETRY_CHANGED"), ("success", "NONE"),
    ]  # fmt: skip
    assert attempts[2]["overrides"]["set"][-2:] == ["args.micro_batch_size=2", "args.gradient_accumulation_steps=8"]
    assert "--micro_batch_size', '2', '--gradient_accumulation_steps', '8'" in shell.call("logs", "@last").stdout


def test_the_next_attempt_runs_the_code_of_the_first(shell: Shell) -> None:
    stand_in(shell)
    (shell.project / "lib.py").write_text("words = 'as submitted'\n")
    train = (
        "import os, sys, time, lib\n"
        "if os.environ['HPC_LAUNCH_ATTEMPT'] == '1':\n"
        "    while not os.path.exists('go'):\n        time.sleep(0.1)\n"
        "    sys.exit('OSError: [Errno 116] Stale file handle')\n"
        "print('the code is', lib.words)\n"
    )
    shell.write(PYTHON + "retry: {backoff: 1s}\n", train)
    assert shell.call("submit", "job.yaml").returncode == 0
    (shell.project / "lib.py").write_text("words = 'edited'\n")
    (shell.project / "train.py").write_text("raise SystemExit(3)\n")
    (shell.project / "go").touch()

    end = time.monotonic() + 180
    while not (ends := list(shell.project.parent.glob("runs/*/attempts/002/end.json"))):
        assert time.monotonic() < end
        time.sleep(0.2)

    assert json.loads(ends[0].read_text())["exit_code"] == 0
    assert "the code is as submitted" in shell.call("logs", "@last").stdout


def test_an_edited_job_file_is_said_and_does_not_count(shell: Shell) -> None:
    stand_in(shell)
    shell.write(PYTHON, "print('well')\n")
    assert shell.call("submit", "job.yaml", "--wait").returncode == 0
    with (shell.project / "job.yaml").open("a") as stream:
        stream.write("args: {lr: 1}\n")

    done = shell.call("resubmit", "@last", "--wait", "--yes")
    while "is not over" in done.stderr:  # the last processes of the first one are just ending
        done = shell.call("resubmit", "@last", "--wait", "--yes")

    assert done.returncode == 0, done.stderr
    assert "has changed since" in done.stderr
    assert shell.status()["attempts"][1]["overrides"] == {}
