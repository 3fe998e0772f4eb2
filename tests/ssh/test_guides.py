"""The launch commands of published guides, unchanged, on three hosts with 2 + 2 + 1 slots for their 8 + 8 + 4.

Stand-ins take the place of the programs (tests/examples); DeepSpeed's launcher and pdsh are the real ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.codes import CODES, checkout
from tests.ssh.ssh_user import SshUser

pytestmark = [pytest.mark.prove, pytest.mark.torch("deepspeed")]

HOSTS = ["n1", "n1", "n2", "n2", "n3"]
LMFLOW = """\
#!/bin/bash
deepspeed_args="--master_port=11000"
while [[ $# -ge 1 ]]; do
  case $1 in
    --model_name_or_path) model_name_or_path="$2"; shift ;;
    --dataset_path) dataset_path="$2"; shift ;;
    --output_model_path) output_dir="$2"; shift ;;
    --deepspeed_args) deepspeed_args="$2"; shift ;;
    *) echo "error: unknown option \\"$1\\"" 1>&2; exit 1
  esac
  shift
done
deepspeed ${deepspeed_args} \\
  examples/finetune.py \\
    --model_name_or_path ${model_name_or_path} --dataset_path ${dataset_path} --output_dir ${output_dir} \\
    --do_train --bf16 --num_train_epochs 0.01 --ddp_timeout 72000
"""
"""What LMFlow's scripts/run_finetune.sh (f3597dba) does with its arguments; a part of those of finetune.py."""


def folder(user: SshUser, tmp_path: Path, code: str, files: dict[str, str], job: dict[str, Any]) -> str:
    """A checkout on the storage that the hosts share, with more files; the path of its job file."""
    local = checkout(CODES[code], tmp_path).parent
    for name, text in {**files, "job.yaml": yaml.safe_dump(job)}.items():
        (local / name).parent.mkdir(exist_ok=True)
        (local / name).write_text(text)
        (local / name).chmod(0o755)
    there = user.home / "code"
    shutil.copytree(local, there)
    for path in (there, *there.rglob("*")):
        os.chown(path, user.cluster.uid, user.cluster.uid)
    return str(there / "job.yaml")


def said(user: SshUser, file: str) -> list[dict[str, Any]]:
    """What each of five processes said, once they are known to have been one group on the hosts that were asked for."""
    done = user.launch("submit", file, "--wait")
    output = user.launch("logs", "@last").stdout
    assert done.returncode == 0, done.stdout + done.stderr + output
    lines = sorted((json.loads(line) for line in re.findall(r"STANDIN (\{.*\})", output)), key=lambda one: one["rank"])
    assert [(one["rank"], one["world"], one["sum"], one["host"]) for one in lines] == [
        (rank, 5, 15, host) for rank, host in enumerate(HOSTS)
    ], output
    user.nothing_left()
    return lines


def test_gpt_neox_as_its_guide_starts_it(user: SshUser, tmp_path: Path) -> None:
    files = {
        "configs/2-7B.yml": '{"model-parallel-size": 1, "train_micro_batch_size_per_gpu": 4,\n'
        '"distributed_backend": "gloo"}',
        "configs/local_setup.yml": '{"data_path": "data/enwik8/enwik8_text_document"}',
    }
    job = {
        "name": "gpt-neox",
        "nodes": 3,
        "launcher": "none",
        "command": "python ./deepy.py train.py configs/2-7B.yml configs/local_setup.yml",
        "env": {"DLTS_HOSTFILE": "${attempt.dir}/hostfile"},
    }
    options = said(user, folder(user, tmp_path, "gpt-neox/job.yaml", files, job))[0]["options"]
    assert (options["global_num_gpus"], options["train_batch_size"]) == (5, 20)


def test_lmflow_as_its_guide_starts_it(user: SshUser, tmp_path: Path) -> None:
    first, second, third = (user.cluster.settings.address(node) for node in ("n1", "n2", "n3"))
    hostfile = f"{first} slots=2\n{second} slots=2\n{third} slots=1\n"
    user.profile("hostfile: configs/hostfile")
    include = f"--include={first}:0,1@{second}:0,1@{third}:0"
    job = {
        "name": "lmflow",
        "nodes": 3,
        "launcher": "none",
        "command": ["./scripts/run_finetune.sh"],
        "args": {
            "model_name_or_path": "meta-llama/Meta-Llama-3-8B",
            "dataset_path": "data/alpaca/train_conversation",
            "output_model_path": "output_models/finetuned_llama",
            "deepspeed_args": f"--master_port=11000 --master_addr={first} {include} --hostfile=configs/hostfile",
        },
    }
    files = {"configs/hostfile": hostfile, "scripts/run_finetune.sh": LMFLOW}
    options = said(user, folder(user, tmp_path, "lmflow/job.yaml", files, job))[0]["options"]
    assert options["model_name_or_path"] == "meta-llama/Meta-Llama-3-8B"
    (written,) = user.home.glob("runs/*/attempts/001/hostfile")
    assert written.read_text() == hostfile
