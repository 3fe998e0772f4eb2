"""`hpc-launch config …` in this process, and questions to the libraries that read what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_launch.cli.main import group
from hpc_launch.cli.terminal import run_guarded
from tests.json_output import check_output


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def codes(self) -> set[str]:
        words = (self.out + self.err).replace(":", " ").split()
        return {word for word in words if word.startswith("HL6") and len(word) == 5}


Config = Callable[..., Done]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Config:
    """Runs the verb in an empty folder. The libraries are not asked unless a test says so: that takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HPC_LAUNCH_HOME", "/home/alice/runs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SLURM_JOB_NODELIST", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str, library: bool = False) -> Done:
        words = list(args)
        if words and words[0] in {"deepspeed", "fsdp"} and not library:
            words.insert(1, "--no-library")
        monkeypatch.setattr(sys, "argv", ["hpc-launch", "config", *words])
        capsys.readouterr()
        done = Done(run_guarded(group), *capsys.readouterr())
        check_output(["config", *words], done.out)
        return done

    return run


def ask(code: str, value: Any) -> Any:
    """What `code` prints as JSON for `value`, in a Python of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=json.dumps(value),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
