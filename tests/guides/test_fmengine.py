"""FMEngine on Slurm: the sbatch script that its users copy and fill in, against what `init --from` makes of it.

docs/evidence/guides/fmengine.md lists the items.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from hpc_launch.from_script.convert import Conversion, convert
from hpc_launch.runtimes.container_runtimes import wrap_command
from hpc_launch.script.render import render
from tests.cluster import Cluster
from tests.from_script.test_forty import converted
from tests.slurm.user import User

SCRIPT = Path(__file__).parents[1] / "from_script" / "scripts" / "guide_fmengine.sbatch"


@pytest.fixture
def conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conversion:
    """The script, read in a folder that has the files which it names."""
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return converted(SCRIPT, tmp_path)


LINES = {
    "--account": ("taken", "account"),
    "--nodes=2": ("taken", "nodes"),
    "--ntasks-per-node": ("taken", "processes_per_node"),
    "--gres=gpu:4": ("taken", "gpus_per_node"),
    "--partition": ("taken", "queue"),
    "--output=": ("unnecessary", "hpc-launch does this itself"),
    "NCCL_IB_TIMEOUT": ("taken", "env.NCCL_IB_TIMEOUT"),
    "UCX_RC_TIMEOUT": ("taken", "env.UCX_RC_TIMEOUT"),
    "NCCL_IB_RETRY_CNT": ("taken", "env.NCCL_IB_RETRY_CNT"),
    "NCCL_ASYNC_ERROR_HANDLING": ("taken", "env.NCCL_ASYNC_ERROR_HANDLING"),
    "echo $SLURM_JOB_GPUS": ("unnecessary", "prints only"),
    "read -ra GPU_ARRAY": ("unnecessary", "lists the GPUs"),
    "NUM_GPUS=${#GPU": ("unnecessary", "its value is used"),
    "TOTAL_GPUS=": ("taken", "env.TOTAL_GPUS"),
    'head -n 1)i"': ("unnecessary", "hpc-launch finds the nodes"),
    "HOSTNAMES=": ("unnecessary", "hpc-launch finds the nodes"),
    "MASTER_PORT=12802": ("unnecessary", "chooses the address and a free port"),
    "COUNT_NODE=": ("unnecessary", "hpc-launch finds the nodes"),
    "for ((i=0": ("unnecessary", "a loop over the nodes"),
    "srun --nodes=1": ("taken", "container"),
    "--home ": ("taken", "container"),
    "--env HF_HOME": ("taken", "env"),
    "--pwd": ("taken", "container"),
    "--nproc-per-node": ("taken", "script"),
    "--deepspeed_config": ("taken", "args"),
    "wait": ("unnecessary", "hpc-launch waits"),
}
"""What becomes of a line that has these words."""


@pytest.mark.parametrize("words", LINES)
def test_each_line_is_taken_over_or_not_needed(conversion: Conversion, words: str) -> None:
    (account,) = (one for one in conversion.script.accounts if words in one.text and not one.text.startswith("# "))
    outcome, told = LINES[words]
    assert account.outcome == outcome
    assert told in (" ".join(account.keys) if outcome == "taken" else account.why), account


def test_the_image_is_started_with_what_the_script_gives_it(conversion: Conversion) -> None:
    plan = conversion.prepare().plan
    text = render(plan).replace(str(conversion.output.parent), "HERE")
    (start, *_) = re.findall(r"^ *exec (singularity exec .*?fmsys\.sif)", text, re.MULTILINE | re.DOTALL)
    words = start.replace("\\\n", " ").split()
    assert words[:4] == ["singularity", "exec", "--no-eval", "--nv"]
    assert "--home=/home/ann:/home/ann" in words
    assert "--no-home" not in words  # would leave the mount of --home out
    assert words[words.index("--pwd") + 1] == "HERE"
    binds = {words[at + 1] for at, word in enumerate(words) if word == "--bind"}
    cache = {"transformers_cache": "/.hf_cache", "pretrained_weights": "/pretrained", "datasets": "/datasets"}
    assert binds >= {"HERE:/workspace", *(f"HERE/cache/{name}:{inside}" for name, inside in cache.items())}
    assert (plan.world_size, plan.nodes, plan.launcher) == (8, 2, "torchrun")


@pytest.mark.parametrize(("options", "without"), [(["--home=/a:/b"], False), (["-H", "/a:/b"], False), ([], True)])
def test_an_own_home_is_not_taken_out_of_the_image(conversion: Conversion, options: list[str], without: bool) -> None:
    job = yaml.safe_load(conversion.job_file)
    job["container"]["options"] = options
    changed = replace(conversion, job_file=yaml.safe_dump(job))
    words = ["".join(map(str, word)) for line in wrap_command(changed.prepare().plan.container).before for word in line]
    assert ("--no-home" in words) == without


ONE_NODE = """\
deepspeed --num_gpus 2 --num_nodes 1 cli/train.py \\
    --output_dir /workspace/.cache/models \\
    --init_ckpt /pretrained/tinyllama-2-1b \\
    --data_path /datasets/dataset.train.jsonl \\
    --max_seq_len 128 --train_steps 1000 --eval_steps 10 --save_steps 1000 --log_steps 10 \\
    --pipe_parallel_size 2 --model_parallel_size 1 --use_flash_attn true --use_fused_ops false \\
    --deepspeed_config ./configs/llama.json
"""


def test_the_command_for_one_machine_becomes_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "train.py").touch()
    (tmp_path / "train.sh").write_text(f"#!/bin/bash\n{ONE_NODE}")
    made = convert(Path("train.sh"), output=None, site="local", environment={}, folder=str(tmp_path))
    assert made.script.of("not_understood") == []
    plan = made.prepare().plan
    assert (plan.launcher, plan.nodes, plan.processes_per_node) == ("deepspeed", 1, 2)
    words = ["".join(map(str, word)) for line in plan.program.argument_lines for word in line]
    assert words == ONE_NODE.replace("\\\n", " ").split()[6:]


# --- the script itself and the job from it, on two nodes of a real Slurm, in a real image ---

SAYS = """\
import json, os, sys
names = "RANK LOCAL_RANK WORLD_SIZE HOME HF_HOME NCCL_IB_TIMEOUT UCX_RC_TIMEOUT NCCL_IB_RETRY_CNT TOTAL_GPUS"
said = {name: os.environ.get(name) for name in names.split()}
said["imports"] = "/workspace" in sys.path
said["image"] = bool(os.environ.get("APPTAINER_CONTAINER"))
said["files"] = {name: os.listdir(name) for name in ("/.hf_cache", "/pretrained", "/datasets", "/workspace/cli")}
said["here"] = os.path.samefile(".", "/workspace")
said["login"] = open(os.path.expanduser("~/.netrc")).read()
said["words"] = sys.argv[1:]
sys.stdout.write(f"SAID {json.dumps(said)}\\n")  # at once: others write to the same file
sys.stdout.flush()
"""


def said(text: str) -> list[dict[str, Any]]:
    """What each process printed, by rank."""
    return sorted((json.loads(one) for one in re.findall(r"SAID (.*)", text)), key=lambda one: int(one["RANK"]))


@pytest.mark.prove
@pytest.mark.torch
@pytest.mark.slow
def test_the_script_and_the_job_from_it_do_the_same(cluster_sid: Cluster, sif: Path, user_dir: Path) -> None:
    user = User(cluster_sid, user_dir)
    python = " ".join(f"--bind {folder}" for folder in cluster_sid.python_folders)
    text = SCRIPT.read_text().replace("proj7", "root").replace("booster", "gpu").replace("fmsys.sif", str(sif))
    text = text.replace("gpu:4", "gpu:2").replace("/p/logs/%j_%N_log.out", "old.out")
    text = text.replace("/home/ann:/home/ann", f"{user.home}/ann:/home/ann").replace("--nv \\", f"--nv {python} \\")
    text = text.replace(" torchrun \\", f" {Path(sys.executable).with_name('torchrun')} \\")
    for name in ("cache/transformers_cache/model", "cache/pretrained_weights/w", "cache/datasets/d", "ann/.netrc"):
        user.job(name, name)
    user.job(SAYS, "cli/train.py")
    user.job(text, "old.sbatch")
    old = cluster_sid.run(["sbatch", "--wait", "old.sbatch"], cwd=user.home, timeout=400)
    by_hand = (user.home / "old.out").read_text()
    assert old.returncode == 0, by_hand
    made = user.launch("init", "--from", "old.sbatch", "-o", "new.yaml")
    assert made.returncode == 0, made.stderr
    assert "0 not understood" in made.stderr
    log = user.completed("new.yaml")
    ours = said(log)
    assert ours == said(by_hand)
    assert [(one["RANK"], one["WORLD_SIZE"], one["TOTAL_GPUS"]) for one in ours] == [
        (str(at), "4", "4") for at in range(4)
    ]
    for one in ours:
        assert (one["HOME"], one["login"], one["image"], one["here"], one["imports"]) == (
            "/home/ann",
            "ann/.netrc",
            True,
            True,
            True,
        )
