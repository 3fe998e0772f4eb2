"""`hpc_launch_hooks.py`: alone in a folder, without hpc-launch and Slurm, and with each library that is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_launch.base.installed import HOOKS
from tests.cluster.requirements import REPOSITORY
from tests.marks import prove

TRAINING = REPOSITORY / "tests" / "trainings" / "with_hooks.py"


def ask(what: str, **variables: str) -> str:
    """The answer of the file to one question, in a process of its own."""
    code = f"import hpc_launch_hooks as hooks; print({what})"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HOOKS.parent), **variables}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_without_hpc_launch_nothing_asks_for_an_end() -> None:
    everything = "[hooks.should_stop(), hooks.time_left(), hooks.attempt(), hooks.resume_path(), hooks.resume_step()]"
    assert ask(everything) == "[False, None, 1, None, None]"
    assert ask("hooks.done()") == "None"


def test_what_the_job_says_is_handed_on(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    assert ask("hooks.should_stop()", HPC_LAUNCH_STOP_FILE=str(stop)) == "False"
    stop.touch()
    assert ask("hooks.should_stop()", HPC_LAUNCH_STOP_FILE=str(stop)) == "True"
    assert ask("hooks.attempt()", HPC_LAUNCH_ATTEMPT="3") == "3"
    assert ask("hooks.resume_path()", HPC_LAUNCH_RESUME_FROM="/a b") == "/a b"
    assert ask("hooks.resume_step()", HPC_LAUNCH_RESUME_STEP="120") == "120"
    left = float(ask("hooks.time_left()", HPC_LAUNCH_END_TIME=str(int(time.time()) + 100)))
    assert 90 < left <= 100
    assert 90 < float(ask("hooks.time_left()", SLURM_JOB_END_TIME=str(int(time.time()) + 100))) <= 100
    ask("hooks.done()", HPC_LAUNCH_DONE_FILE=str(tmp_path / "done"))
    assert (tmp_path / "done").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "name"),
    [
        pytest.param("torch", r"step-(\d+)\.pt", marks=pytest.mark.torch),
        prove("deepspeed", r"global_step(\d+)", also=pytest.mark.torch("deepspeed")),
        prove("trainer", r"checkpoint-(\d+)", also=pytest.mark.torch("transformers")),
        prove("lightning", r"epoch=\d+-step=(\d+)\.ckpt", also=pytest.mark.torch("lightning")),
    ],
)
def test_all_ranks_stop_at_one_step_and_go_on_from_there(library: str, name: str, tmp_path: Path) -> None:
    folder, stop, done = tmp_path / "saved", tmp_path / "stop", tmp_path / "done"
    folder.mkdir()
    signs = {"HPC_LAUNCH_STOP_FILE": str(stop), "HPC_LAUNCH_DONE_FILE": str(done)}

    first = train(library, folder, signs)

    begun, reached = first
    assert begun == 0
    assert reached >= 3
    assert not done.exists()
    saved = [path for path in folder.iterdir() if re.fullmatch(name, path.name)]
    assert [int(re.fullmatch(name, path.name)[1]) for path in saved] == [reached]  # type: ignore[index]
    stop.unlink()
    again = train(library, folder, {**signs, "HPC_LAUNCH_RESUME_FROM": str(saved[0]), "LAST_STEP": str(reached + 2)})
    assert again == (reached, reached + 2)
    assert done.exists()


def train(library: str, folder: Path, variables: dict[str, str]) -> tuple[int, int]:
    """Two ranks: the step that they began after and the one that they ended at, the same on both."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    env = {**os.environ, "PYTHONPATH": str(HOOKS.parent), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [*words, str(TRAINING), library, str(folder)],
        env=env, cwd=folder, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    spans = re.findall(r"rank \d from (\d+) to (\d+)", done.stdout)
    assert len(spans) == 2, done.stdout
    assert spans[0] == spans[1]
    return int(spans[0][0]), int(spans[0][1])
