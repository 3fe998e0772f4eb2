"""A fine-tuning framework's own scripts for DeepSpeed, FSDP and Slurm: its commands as they are, and what they yield.

docs/evidence/guides/fine-tuning.md lists the items.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.here import launch
from tests.marks import prove
from tests.prove import node_check
from tests.prove.node_check_faults import JOBS
from tests.slurm.user import User
from tests.ssh.ssh_user import SshUser
from tests.strategies.conftest import ask

SETUP = "python scripts/distributed_setup.py"
"""What the commands begin with by hand; `hpc-launch config` takes its place."""
DEEPSPEED = f"{SETUP} deepspeed --zero_stage 2 --offload_optimizer --bf16 --output config/ds_config.json"
FSDP = f"{SETUP} fsdp --sharding_strategy FULL_SHARD --mixed_precision BFLOAT16 --output config/fsdp_config.json"
LAUNCHER = f"{SETUP} launcher --config config.yaml --num_gpus_per_node 4"
SLURM = f"{SETUP} slurm --config config.yaml --num_nodes 4 --num_gpus_per_node 8 --use_deepspeed --time_limit 48:00:00"
NODE = (
    f"{SETUP} launcher --config config.yaml --num_nodes 4 --num_gpus_per_node 8 --master_addr 192.168.1.100 "
    "--master_port 29500 --node_rank {} --use_deepspeed"
)
DS_EXAMPLE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 16,
    "gradient_clipping": 0.3,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 2,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e8,
        "allgather_bucket_size": 5e8,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
}
FSDP_EXAMPLE = {
    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer", "MistralDecoderLayer", "GemmaDecoderLayer"],
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_cuda_graphs": False,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_sync_module_states": True,
    "fsdp_use_orig_params": False,
    "fsdp_backward_prefetch_policy": "BACKWARD_PRE",
    "fsdp_forward_prefetch": False,
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_mixed_precision": "BFLOAT16",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The framework's folders."""
    for name in ("config", "scripts", "src"):
        (tmp_path / name).mkdir()
    (tmp_path / "src" / "train.py").touch()
    return tmp_path


def setup(folder: Path, command: str, *more: str, code: int = 0) -> str:
    """What one of the commands prints, with hpc-launch in place of the framework's script."""
    words = shlex.split(command.replace(SETUP, "config"))
    done = launch(folder, *words, *(["--no-library"] if words[1] in {"deepspeed", "fsdp"} else []), *more)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def within(part: Any, whole: Any) -> bool:
    """Whether a mapping has all values of another one."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and within(part[key], whole[key]) for key in part)
    return bool(part == whole)


def test_the_deepspeed_file_has_the_values_of_the_example(project: Path) -> None:
    more = ("--auto", "--gradient-accumulation", "16", "--gradient-clipping", "0.3")
    setup(project, DEEPSPEED, *more)
    assert within(DS_EXAMPLE, json.loads((project / "config" / "ds_config.json").read_text()))
    (project / "old.json").write_text(json.dumps(DS_EXAMPLE))
    setup(project, f"{SETUP} deepspeed --auto --check old.json")


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("option", "block"), [("--bf16", "bf16"), ("--fp16", "fp16")])
def test_each_stage_and_precision_has_its_file(project: Path, stage: int, option: str, block: str) -> None:
    data = json.loads(setup(project, f"{SETUP} deepspeed --zero_stage {stage} {option}"))
    assert (data["zero_optimization"]["stage"], data[block]["enabled"]) == (stage, True)


def test_parameters_and_states_are_offloaded_as_in_the_example(project: Path) -> None:
    cpu = {"device": "cpu", "pin_memory": True}
    data = json.loads(setup(project, f"{SETUP} deepspeed --zero_stage 3 --offload_optimizer --offload_param"))
    assert within({"offload_optimizer": cpu, "offload_param": cpu}, data["zero_optimization"])
    assert "HL612" in setup(project, f"{SETUP} deepspeed --zero_stage 2 --offload_param", code=3)  # no effect there


def test_buckets_have_the_size_that_is_asked_for(project: Path) -> None:
    zero = json.loads(setup(project, f"{SETUP} deepspeed --zero_stage 3 --buckets 5e7"))["zero_optimization"]
    assert zero["reduce_bucket_size"] == 50_000_000


def test_the_fsdp_file_is_json_and_passes_our_own_check(project: Path) -> None:
    setup(project, FSDP)
    data = json.loads((project / "config" / "fsdp_config.json").read_text())
    assert (data["distributed_type"], data["mixed_precision"]) == ("FSDP", "bf16")
    assert data["fsdp_config"]["fsdp_reshard_after_forward"] is True
    setup(project, f"{SETUP} fsdp --check config/fsdp_config.json")


@pytest.mark.parametrize(("word", "written"), [("no", "no"), ("FLOAT16", "fp16"), ("bf16", "bf16")])
def test_fsdp_trains_in_each_precision(project: Path, word: str, written: str) -> None:
    data = yaml.safe_load(setup(project, f"{SETUP} fsdp --mixed_precision {word} --activation-checkpointing"))
    assert (data["mixed_precision"], data["fsdp_config"]["fsdp_activation_checkpointing"]) == (written, True)


LOADED = """
import contextlib, json, sys
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import FullyShardedDataParallelPlugin
with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers import TrainingArguments
folder = json.load(sys.stdin)
zero = [DeepSpeedConfig(f"{folder}/zero{stage}.json").zero_config for stage in (1, 2, 3)]
fsdp = load_config_from_file(f"{folder}/fsdp.json")
trainer = TrainingArguments(output_dir=folder, use_cpu=True, fsdp=True, fsdp_config=f"{folder}/trainer.json")
plugin = FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True)
print(json.dumps([[one.stage for one in zero], zero[1].offload_optimizer.device, zero[2].offload_param.device,
                  fsdp.mixed_precision, fsdp.fsdp_config, trainer.fsdp_config["version"]], default=str))
"""


@pytest.mark.prove  # tests/strategies/test_golden.py has the libraries read each kind
@pytest.mark.slow
@pytest.mark.torch("deepspeed", "accelerate", "transformers")
def test_the_libraries_load_every_file(project: Path) -> None:
    """DeepSpeed's, Accelerate's and the Trainer's own readers, in one Python."""
    for stage, option in ((1, ""), (2, "--offload_optimizer"), (3, "--offload_param")):
        setup(project, f"{SETUP} deepspeed --zero_stage {stage} {option} --bf16 --micro-batch 1 -o zero{stage}.json")
    setup(project, FSDP.replace("config/fsdp_config.json", "fsdp.json"))
    setup(project, FSDP.replace("config/fsdp_config.json", "trainer.json"), "--for=trainer")
    stages, optimizer, parameters, precision, fsdp, version = ask(LOADED, str(project))
    assert (stages, optimizer[-3:], parameters[-3:], precision, version) == ([1, 2, 3], "cpu", "cpu", "bf16", 2)
    assert fsdp == json.loads((project / "fsdp.json").read_text())["fsdp_config"]


@pytest.mark.prove
@pytest.mark.torch("accelerate", "transformers")
def test_keys_of_the_old_fsdp_file_that_nothing_reads_are_named(project: Path) -> None:
    (project / "old.json").write_text(json.dumps(FSDP_EXAMPLE, indent=1))
    done = launch(project, "config", "fsdp", "--check", "old.json")
    named = set(re.findall(r"HL601 unknown key `(\w+)`: the Trainer ignores", done.stdout))
    assert {"fsdp_cuda_graphs", "fsdp_backward_prefetch_policy", "fsdp_mixed_precision"} <= named, done.stdout


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        (f"{LAUNCHER} --use_deepspeed", "deepspeed.launcher.runner"),
        (LAUNCHER, "torch.distributed.run"),
        *((NODE.format(rank), "deepspeed.launcher.runner") for rank in range(4)),
    ],
)
def test_the_script_of_a_node_starts_the_training(project: Path, command: str, starts: str) -> None:
    text = setup(project, command)
    assert re.search(rf"^exec python3 -m {re.escape(starts)} ", text, re.MULTILINE)
    assert re.search(r"/src/train\.py \\\n +--config \\\n +config\.yaml$", text, re.MULTILINE)
    if "--master_addr" in command:
        rank = command.split()[-2]
        assert "export MASTER_ADDR=192.168.1.100 MASTER_PORT=29500\n" in text
        assert f"node=${{1:-{rank}}}\n" in text
        assert "slots=(8 8 8 8)" in text


def test_the_slurm_script_asks_for_the_same(project: Path) -> None:
    more = ("--module=cuda/12.2", "--module=anaconda3", "--conda=llm_finetuning", "--partition=gpu")
    text = setup(project, SLURM, *more, "--name=llm_finetune", "--", "--deepspeed", "config/ds_config.json")
    asked = {line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")}
    assert asked >= {
        *("--job-name=llm_finetune", "--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=64", "--gpus-per-node=8"),
        *("--time=2-00:00:00", "--partition=gpu"),
    }
    assert text.index("module load cuda/12.2") < text.index("module load anaconda3") < text.index("conda activate llm_")
    words = " ".join(text.replace("\\\n", " ").split())
    assert " --config config.yaml --deepspeed config/ds_config.json" in words


def test_variables_of_the_network_are_handed_on(tmp_path: Path) -> None:
    env = {"NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0"}
    (tmp_path / "train.py").touch()
    job = {"name": "a", "script": "train.py", "env": env}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    text = launch(tmp_path, "render", "job.yaml", "--site", "local").stdout
    assert all(re.search(rf"^ *export {name}={value}\b", text, re.MULTILINE) for name, value in env.items())


def test_tensorboard_and_the_precision_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    job = {"name": "a", "script": "train.py", "trackers": ["tensorboard"], "strategy": "zero2", "precision": "bf16"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "args": {"deepspeed": "${strategy.config}"}}))
    text = launch(tmp_path, "render", "job.yaml", "--site", "local").stdout
    assert re.search(r'export TENSORBOARD_LOGGING_DIR="?\$HPC_LAUNCH_RUN_DIR"?/tensorboard', text)
    assert '"stage": 2' in text
    assert re.search(r'"bf16": \{\s+"enabled": true', text)


def test_pipelines_go_with_the_first_stage_of_zero(project: Path) -> None:
    more = "--world-size 8 --micro-batch 2"
    data = json.loads(setup(project, f"{SETUP} deepspeed --zero_stage 1 --model-parallel 2 {more}"))
    assert data["train_batch_size"] == 2 * 8 // 2


TRACKED = """\
import os
import wandb
from torch.utils.tensorboard import SummaryWriter
run = wandb.init(project="p")
run.log({"loss": 1.0})
run.finish()
with SummaryWriter(os.environ["TENSORBOARD_LOGGING_DIR"]) as writer:
    writer.add_scalar("loss", 1.0, 1)
"""


@pytest.mark.slow
@pytest.mark.torch("tensorboard", "wandb")
def test_wandb_offline_and_tensorboard_write_into_the_run_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRACKED)
    job = {"name": "a", "launcher": "none", "command": [sys.executable, "train.py"], "env": {"WANDB_MODE": "offline"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "trackers": ["wandb", "tensorboard"]}))
    done = launch(tmp_path, "submit", "job.yaml", "--site=local", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = tmp_path.glob("runs/*/wandb/offline-run-*/*.wandb")
    assert list(written.parents[2].glob("tensorboard/events.out.tfevents.*"))
    assert f"wandb sync {written.parents[1]}/offline-run-*" in launch(tmp_path, "status", "@last").stdout


# --- on real hosts ---

SAYS = """\
import os, sys
names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
words = ["SAID", *(os.environ[name] for name in names.split()), os.uname().nodename, *sys.argv[1:]]
sys.stdout.write(" ".join(words) + "\\n")  # at once: others write to the same file
sys.stdout.flush()
"""


def python_of(user: User) -> list[str]:
    """The training of the tests, and the options that give it this Python."""
    user.job(SAYS, "src/train.py")
    return ["--python", sys.executable]


@pytest.fixture
def hosts(cluster: Cluster, user_dir: Path) -> SshUser:
    return SshUser(cluster, user_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        pytest.param("", marks=pytest.mark.torch),
        prove("--use_deepspeed", also=pytest.mark.torch("deepspeed")),
    ],
)
def test_the_scripts_of_two_hosts_meet(hosts: SshUser, option: str) -> None:
    """The commands for each node, with two nodes of two processes; no ssh is used."""
    address, python = hosts.cluster.settings.address("n1"), python_of(hosts)
    port = "29517" if option else "29516"
    steps = []
    for rank in (0, 1):
        command = NODE.format(rank).replace("nodes 4", "nodes 2").replace("node 8", "node 2")
        command = command.replace("192.168.1.100", address).replace("29500", port).replace("--use_deepspeed", option)
        words = shlex.split(command.replace(SETUP, "config"))
        assert hosts.launch(*words, *python, "-o", f"start{rank}.sh").returncode == 0
        start = ["bash", f"start{rank}.sh"]
        steps.append(hosts.cluster.popen(start, cwd=hosts.home, env=hosts.env, node=f"n{rank + 1}"))
    ends = [step.communicate(timeout=300) for step in steps]
    assert [step.returncode for step in steps] == [0, 0], ends
    said = [one.split() for one in re.findall(r"SAID (.*)", "".join(out + err for out, err in ends))]
    plain = [[word for word in one if not word.startswith("--local_rank")] for one in said]
    assert sorted(plain) == [
        [str(rank), str(rank % 2), "4", address, port, f"n{rank // 2 + 1}", "--config", "config.yaml"]
        for rank in range(4)
    ]


@pytest.mark.slow
@pytest.mark.torch
def test_the_slurm_script_runs(cluster: Cluster, user_dir: Path) -> None:
    """The command for Slurm, with two nodes of two GPUs and torchrun, and `sbatch` of what it writes."""
    user = User(cluster, user_dir)
    python_of(user)
    command = SLURM.replace("nodes 4", "nodes 2").replace("node 8 --use_deepspeed", "node 2")
    words = shlex.split(command.replace(SETUP, "config").replace("48:00:00", "00:05:00"))
    venv = str(Path(sys.executable).parents[1])
    more = ("--partition=gpu", "--cpus-per-node=2", f"--venv={venv}", "-o", "scripts.sh")
    assert user.launch(*words, *more).returncode == 0
    done = cluster.run(["sbatch", "--wait", "--output=out.txt", "scripts.sh"], cwd=user.home, timeout=300)
    text = "".join(path.read_text() for path in user.home.rglob("*") if path.suffix in {".txt", ".log"})
    assert done.returncode == 0, text
    said = {tuple(one.split()) for one in re.findall(r"SAID (.*)", text)}
    assert {(one[0], one[1], one[2]) for one in said} == {(str(rank), str(rank % 2), "4") for rank in range(4)}
    assert {one[6:] for one in said} == {("--config", "config.yaml")}


@pytest.mark.prove
def test_a_slow_network_is_named(disturbed_cluster: Cluster) -> None:
    """At one node, 20 Mbit/s."""
    job = next(job for job in JOBS if job.key == "slow-pair")
    outcomes = node_check.check(disturbed_cluster, job)
    assert {one["fault"]: one["wrong"] for one in outcomes if one["wrong"]} == {}, outcomes
