"""The example that users read first does what its README says: it trains, saves, resumes and stops.

It is run as users run it, in processes of its own, with a model so small that starting Python and importing
torch is most of the time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "tiny-gpt"
SMALL = ("--width", "32", "--layers", "1", "--context", "32", "--batch-size", "4", "--log-every", "2")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(300),
]


def environment(**more: str | Path) -> dict[str, str]:
    """This process's environment without what a launcher around the tests may have set."""
    ours = {key: value for key, value in os.environ.items() if key not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}}
    return ours | {"OMP_NUM_THREADS": "1"} | {key: str(value) for key, value in more.items()}


def train(*args: str | Path, launcher: tuple[str, ...] = (), expect: int = 0, **env: str | Path) -> str:
    """Run train.py, alone or below a launcher; return what it printed."""
    command = [sys.executable, *launcher, str(EXAMPLE / "train.py"), *SMALL, *map(str, args)]
    done = subprocess.run(command, env=environment(**env), capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def checkpoint_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def state(folder: Path, step: int) -> Any:
    import torch

    return torch.load(folder / f"step-{step:06d}" / "state.pt", weights_only=True)


def assert_same_bits(one: Any, other: Any) -> None:
    """Compare two checkpoints, value by value and without a tolerance."""
    import torch

    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same_bits(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for ours, theirs in zip(one, other, strict=True):
            assert_same_bits(ours, theirs)
    else:
        assert one == other


def test_one_process_needs_no_launcher() -> None:
    lines = train("--steps", "3").splitlines()

    assert re.fullmatch(r"rank 0 of 1 on host \S+ local rank 0", lines[0])
    assert re.fullmatch(r"step 1/3 loss 5\.\d{4} lr \d\.\de[-+]\d\d tokens/s \d+", lines[1])
    assert [line.split()[1] for line in lines[1:-1]] == ["1/3", "2/3", "3/3"]
    assert re.fullmatch(r"training finished at step 3 loss [45]\.\d{6}", lines[-1])


TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.prove
@pytest.mark.slow
def test_two_ranks_resume_bit_for_bit(tmp_path: Path) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    both = ("--steps", "8", "--checkpoint-every", "4", "--resume", "auto", "--checkpoint-dir")

    undisturbed = train(*both, whole, launcher=TWO_RANKS)
    assert sorted(re.findall(r"^rank (\d) of 2 on host", undisturbed, re.MULTILINE)) == ["0", "1"]
    assert undisturbed.count("step 8/8 ") == 1, "only rank 0 reports progress"
    finished = re.search(r"^training finished at step 8 loss .*$", undisturbed, re.MULTILINE)
    assert finished
    assert checkpoint_names(whole) == ["step-000004", "step-000008"]

    # The same run again, but rank 1 fails at step 6; torchrun then ends the others.
    failing = (*both, halved, "--fail-at-step", "6", "--fail-rank", "1")
    train(*failing, launcher=TWO_RANKS, expect=1)
    assert checkpoint_names(halved) == ["step-000004"]

    resumed = train(*failing, launcher=TWO_RANKS)
    assert "resumed from step-000004" in resumed
    assert "step 4/8" not in resumed
    assert finished[0] in resumed
    assert_same_bits(state(halved, 8), state(whole, 8))


@pytest.mark.prove
def test_a_stop_file_ends_the_run_after_a_checkpoint(tmp_path: Path) -> None:
    whole, stopped, stop_file = tmp_path / "whole", tmp_path / "stopped", tmp_path / "stop"
    args = ("--steps", "4", "--resume", "auto", "--checkpoint-dir")
    undisturbed = train(*args, whole)
    assert train(*args, whole).splitlines()[-1] == undisturbed.splitlines()[-1], "started again, it is still finished"

    stop_file.touch()
    output = train(*args, stopped, HPC_LAUNCH_STOP_FILE=stop_file)
    assert output.splitlines()[-1] == "stopping early at step 1: checkpoint saved"
    assert checkpoint_names(stopped) == ["step-000001"]

    stop_file.unlink()
    output = train(*args, stopped, HPC_LAUNCH_STOP_FILE=stop_file)
    assert "resumed from step-000001" in output
    assert_same_bits(state(stopped, 4), state(whole, 4))


@pytest.mark.prove
def test_damaged_checkpoints_are_passed_over(tmp_path: Path) -> None:
    args = ("--steps", "4", "--checkpoint-every", "2", "--resume", "auto", "--checkpoint-dir", tmp_path)
    undisturbed = train(*args)
    good = state(tmp_path, 4)
    shutil.copytree(tmp_path / "step-000004", tmp_path / "step-000006")

    cut_short = tmp_path / "step-000006" / "state.pt"
    cut_short.write_bytes(cut_short.read_bytes()[: cut_short.stat().st_size // 2])
    one_bit_flipped = tmp_path / "step-000004" / "state.pt"
    content = bytearray(one_bit_flipped.read_bytes())
    content[len(content) // 2] ^= 1
    one_bit_flipped.write_bytes(content)

    output = train(*args)
    for name in ("step-000006", "step-000004"):
        assert f"checkpoint {name} is damaged (state.pt): trying the one before" in output
    assert "resumed from step-000002" in output
    assert output.splitlines()[-1] == undisturbed.splitlines()[-1]
    assert_same_bits(state(tmp_path, 4), good)


@pytest.mark.prove
def test_it_needs_no_numpy(tmp_path: Path) -> None:
    """`make quickstart` installs torch alone, and some of torch's calls want numpy."""
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('not here')\n")
    folder = tmp_path / "checkpoints"
    train("--steps", "2", "--checkpoint-dir", folder, "--checkpoint-every", "1", PYTHONPATH=tmp_path)
    again = train("--steps", "3", "--checkpoint-dir", folder, "--resume", "auto", PYTHONPATH=tmp_path)
    assert "resumed from step-000002" in again
