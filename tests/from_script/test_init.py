"""`init`: what it writes, what it refuses, and how it asks."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hpc_launch.base.errors import UsageError
from hpc_launch.images.training_source import read_training
from tests.forked import hpc_launch_text

TRAINING = """\
import argparse
import torch.distributed as dist

open("RAN", "w")
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="folder of the corpus")
parser.add_argument("--lr", type=float, default=3e-4, help="learning rate")
parser.add_argument("-q", "--quiet", action="store_true")
if __name__ == "__main__":
    dist.init_process_group()
"""
ANSWERS = ("--set", "account=p1", "--set", "args.data=/corpus")
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\nsrun torchrun --nproc_per_node=4 train.py\n"
SITE = """\
name: big
scheduler: slurm
node_classes: {node: {cpus: 64, gpus: 4}}
queues:
  batch: {node_class: node, partition: gpu, memory: omit, default_time: 01:00:00}
  short: {node_class: node, partition: devel, memory: omit}
account: {required: true, find: "accounts -l"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    (tmp_path / "big.yaml").write_text(SITE)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "PYTHONPATH"}}
    return {**kept, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), "HPC_LAUNCH_SITE_PATH": str(folder)}


def init(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return hpc_launch_text(["init", *words], cwd=folder, env=environment(folder))


def test_files_are_written_once(folder: Path) -> None:
    done = init(folder, "--from", "train.sbatch", "--site", "big", "--json")
    answer = json.loads(done.stdout)
    # The site requires an account, which the script does not have.
    assert done.returncode == 3
    assert "requires an account" in answer["findings"][0]["message"]
    assert answer["findings"][0]["file"] == "train.yaml"
    assert answer["site_file"] is None
    assert "site: big" in (folder / "train.yaml").read_text()
    before = (folder / "train.yaml").read_text()
    again = init(folder, "--from", "train.sbatch")
    assert (again.returncode, "train.yaml exists" in again.stderr) == (2, True)
    assert (folder / "train.yaml").read_text() == before


def test_comparing_writes_nothing(folder: Path) -> None:
    (folder / "train.sbatch").write_text(SCRIPT.replace("\n#", "\n#SBATCH --account=p1\n#", 1))
    files = sorted(folder.glob("[!.]*"))
    done = init(folder, "--from", "train.sbatch", "--site", "big", "--compare", "--lines")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^processes per node +4 +4 +same$", done.stdout, re.MULTILINE)
    assert sorted(folder.glob("[!.]*")) == files


def test_in_a_pipe_the_missing_answers_are_named(folder: Path) -> None:
    done = init(folder, "train.py", "--site", "big")
    assert done.returncode == 2
    for flag in ("queue", "account", "nodes", "gpus_per_node", "time", "args.data"):
        assert f"--set {flag}=…" in done.stderr
    assert not (folder / "job.yaml").exists()


def test_every_question_has_an_option(folder: Path) -> None:
    done = init(folder, "train.py", "--site", "big", "--yes", *ANSWERS)
    assert done.returncode == 0, done.stderr
    text = (folder / "job.yaml").read_text()
    for line in ("site: big", "queue: batch", "account: p1", "nodes: 1", "script: train.py", "  data: /corpus"):
        assert line in text.splitlines()
    assert not (folder / "RAN").exists()


def test_an_invalid_answer_writes_no_file(folder: Path) -> None:
    done = init(folder, "train.py", "--site", "big", "--yes", *ANSWERS, "--set", "nodes=0")
    assert done.returncode == 3
    assert done.stderr.startswith("job.yaml:"), "the file that was asked for, though it was not written"
    assert not (folder / "job.yaml").exists()


def test_the_script_is_found_from_the_folder_of_the_job_file(folder: Path) -> None:
    (folder / "jobs").mkdir()
    done = init(folder, "train.py", "--site", "big", "--yes", *ANSWERS, "-o", "jobs/job.yaml")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((folder / "jobs" / "job.yaml").read_text())["script"] == "../train.py"


def test_a_person_is_asked(folder: Path) -> None:
    """On a terminal: wrong answers are asked again, empty ones take the default."""
    answers = ["train.py", "short", "p1", "none", "2", "", "soon", "00:30:00", "/corpus"]
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "hpc_launch", "init", "--site", "big"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdin=slave, stdout=subprocess.PIPE, stderr=slave
    )
    os.close(slave)
    os.write(master, "".join(f"{answer}\n" for answer in answers).encode())
    out, _ = process.communicate(timeout=120)
    os.close(master)
    assert process.returncode == 0
    assert out.decode().strip() == "job.yaml"
    text = (folder / "job.yaml").read_text()
    for line in ("queue: short", "nodes: 2", "gpus_per_node: 4", 'time: "00:30:00"', "  data: /corpus"):
        assert line in text.splitlines()


def test_the_source_tells_options_and_launcher(folder: Path) -> None:
    found = read_training(folder / "train.py")
    assert found.launcher == "torchrun"
    assert found.required == {"data": "folder of the corpus"}
    (folder / "alone.py").write_text("import torch\n")
    assert read_training(folder / "alone.py").launcher == "none"
    (folder / "deep.py").write_text("import deepspeed\n")
    assert read_training(folder / "deep.py").launcher == "deepspeed"


@pytest.mark.parametrize("text", ["def (", "\0", "(" * 10_000])
def test_a_source_that_is_not_python_is_refused(folder: Path, text: str) -> None:
    (folder / "bad.py").write_text(text)
    with pytest.raises(UsageError):
        read_training(folder / "bad.py")


def test_the_queue_and_the_variables_of_a_known_site(folder: Path) -> None:
    (folder / "big.yaml").write_text(SITE + "env: [{set: {NCCL_IB_HCA: mlx5_0}}]\n")
    script = SCRIPT.replace("#SBATCH", "#SBATCH -A p1 -p devel", 1)
    script = script.replace(
        "srun", "export NCCL_IB_HCA=mlx5_0 NCCL_DEBUG=INFO\nmodule purge\nexport NCCL_IB_TC=106\nsrun"
    )
    (folder / "train.sbatch").write_text(script)
    done = init(folder, "--from", "train.sbatch", "--site", "big", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["same"]) == (0, True)
    assert "queue: short\n" in answer["job"]
    assert '  NCCL_IB_TC: "106"' in answer["job"]
    assert [line["text"] for line in answer["lines"] if line["outcome"] == "not_understood"] == ["module purge"]

    (folder / "train.sbatch").write_text(script.replace("devel", "other"))
    done = init(folder, "--from", "train.sbatch", "--site", "big", "--json", "--force")
    assert "sbatch:\n  partition: other" in json.loads(done.stdout)["job"]
