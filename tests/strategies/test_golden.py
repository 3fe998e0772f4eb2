"""Each form of file against its golden file, and against the library that reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.strategies.conftest import Config, ask

EXPECTED = Path(__file__).parent / "expected"
STAGE_3 = ("deepspeed", "--zero-stage", "3", "--bf16")
CASES = {
    "zero0.json": ("deepspeed", "--zero-stage", "0"),
    "zero1_fp16.json": ("deepspeed", "--zero-stage", "1", "--fp16", "--gradient-clipping", "0", "--no-overlap"),
    "zero2_cpu.json": ("deepspeed", "--zero_stage", "2", "--offload_optimizer", "--bf16"),
    "zero3.json": (*STAGE_3, "--train-batch", "256", "--micro-batch", "4", "--world-size", "16", "--buckets", "5e7"),
    "zero3_cpu.json": (*STAGE_3, "--offload-optimizer", "--offload-param"),
    "zero3_nvme.json": (*STAGE_3, "--offload-optimizer=nvme", "--offload-param=nvme", "--nvme-path", "/local/nvme"),
    "zero2_auto.json": ("deepspeed", "--auto", "--gradient-accumulation", "16", "--bf16", "--offload-optimizer"),
    "zero3_auto.json": (*STAGE_3[:3], "--auto"),
    "zero1_parallel.json": (
        *("deepspeed", "--zero-stage", "1", "--world-size", "8", "--model-parallel", "2", "--micro-batch", "2"),
    ),
    "fsdp1_accelerate.yaml": (
        *("fsdp", "--version", "1", "--sharding-strategy", "HYBRID_SHARD", "--wrap-class", "LlamaDecoderLayer"),
        *("--num-machines", "2", "--num-processes", "8", "--mixed-precision", "fp16"),
    ),
    "fsdp2_accelerate.yaml": ("fsdp", "--sharding_strategy", "FULL_SHARD", "--mixed_precision", "BFLOAT16"),
    "fsdp2_size.yaml": (
        *("fsdp", "--wrap-policy", "SIZE_BASED_WRAP", "--min-params", "1e7", "--sharding-strategy", "SHARD_GRAD_OP"),
        *("--offload", "--activation-checkpointing", "--state-dict", "FULL_STATE_DICT", "--mixed-precision", "no"),
    ),
    "fsdp1_trainer.json": ("fsdp", "--version", "1", "--for", "trainer", "--wrap-policy", "NO_WRAP"),
    "fsdp2_trainer.json": (
        *("fsdp", "--for", "trainer", "--wrap-class", "LlamaDecoderLayer", "--wrap-class", "LlamaMLP", "--offload"),
    ),
    "megatron.txt": (
        *("megatron", "--world-size", "64", "--tp", "4", "--pp", "4", "--cp", "2", "--sequence-parallel"),
        *("--distributed-optimizer", "--overlap", "--vpp", "2", "--num-layers", "32", "--hidden-size", "4096"),
        *("--heads", "32", "--query-groups", "8", "--seq-length", "8192", "--global-batch", "64"),
    ),
    "megatron_moe.yaml": (
        *("megatron", "--world-size", "16", "--ep", "8", "--etp", "1", "--num-experts", "64", "--format", "args"),
        *("--precision", "fp16", "--num-layers", "16", "--heads", "16", "--hidden-size", "2048"),
    ),
    "hostfile": ("hostfile", "--hosts", "n[1-3],gpu07", "--slots", "8", "--suffix", "i"),
    "torchrun_node1.sh": (
        *("launcher", "--num-nodes", "4", "--gpus-per-node", "8", "--master-addr", "192.168.1.100"),
        *("--node-rank", "1", "--cpus-per-node", "64", "--script", "my train.py", "--", "--note", "it's $HOME"),
    ),
    "deepspeed_node0.sh": (
        *("launcher", "--num_nodes", "4", "--num_gpus_per_node", "8", "--master_addr", "192.168.1.100"),
        *("--master_port", "29500", "--node_rank", "0", "--use_deepspeed", "--script", "src/train.py"),
        *("--", "--config", "config.yaml", "--deepspeed", "config/ds_config.json"),
    ),
}


def files(*parts: str) -> list[tuple[str, str]]:
    """Names and texts of those golden files whose names hold all parts."""
    return [(path.name, path.read_text()) for path in sorted(EXPECTED.iterdir()) if all(p in path.name for p in parts)]


@pytest.mark.parametrize("case", CASES)
def test_the_file_is_the_golden_one(case: str, config: Config, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    done = config(*CASES[case])
    assert done.code == 0, done.err
    written = done.out.replace(str(tmp_path), "/home/alice/job").encode()
    if request.config.getoption("--update-golden"):
        (EXPECTED / case).write_bytes(written)
    assert written == (EXPECTED / case).read_bytes()


def test_there_is_no_golden_file_of_no_case() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == set(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(("zero", "fsdp"))])
def test_our_own_check_finds_no_fault_in_what_we_write(case: str, config: Config) -> None:
    done = config(CASES[case][0], "--check", str(EXPECTED / case), *(["--auto"] if "auto" in case else []))
    assert (done.code, done.codes) == (0, set()), done.out


def test_shellcheck_finds_nothing() -> None:
    scripts = sorted(EXPECTED.glob("*.sh"))
    checked = subprocess.run(
        [str(Path(sys.executable).with_name("shellcheck")), *scripts], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


DEEPSPEED = """
import json, sys
from deepspeed.runtime import config as module
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
class World:
    size = 1
    get_rank = staticmethod(lambda *ignored: 0)
    get_world_size = staticmethod(lambda *ignored: World.size)
module.dist = World
seen = {}
for name, data, World.size in json.load(sys.stdin):
    made = module.DeepSpeedConfig(data)
    seen[name] = [made.train_batch_size, made.train_micro_batch_size_per_gpu, made.gradient_accumulation_steps,
                  made.zero_config.stage, made.bfloat16_config.enabled, made.float16_config.enabled,
                  made.gradient_clipping]
print(json.dumps(seen))
"""


@pytest.mark.torch("deepspeed")
def test_deepspeed_itself_takes_each_file() -> None:
    worlds = {"zero3.json": 16, "zero1_parallel.json": 4}
    asked = [
        (name, json.loads(text), worlds.get(name, 1)) for name, text in files("zero", ".json") if "auto" not in name
    ]
    seen = ask(DEEPSPEED, asked)
    assert seen["zero3.json"] == [256, 4, 4, 3, True, False, 1.0]
    assert seen["zero1_fp16.json"] == [1, 1, 1, 1, False, True, 0.0]
    assert seen["zero1_parallel.json"][:4] == [8, 2, 1, 1]
    assert seen["zero0.json"][3] == 0


@pytest.mark.torch("deepspeed")
@pytest.mark.parametrize("case", ["zero2_auto.json", "zero3_auto.json"])
def test_deepspeed_takes_auto_files_once_the_trainer_has_filled_them_in(case: str, config: Config) -> None:
    done = config("deepspeed", "--check", str(EXPECTED / case), "--auto", library=True)
    assert (done.code, done.out) == (0, "")


ACCELERATE = """
import json, os, sys, tempfile
from unittest import mock
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from accelerate.utils import dataclasses
seen = {}
for name, text in json.load(sys.stdin):
    path = os.path.join(tempfile.mkdtemp(), name)
    open(path, "w").write(text)
    more = [] if "num_processes" in text else ["--num_processes", "2"]  # accelerate launch insists on it
    args = launch_command_parser().parse_args(["--config_file", path, *more, "train.py"])
    args, defaults, _ = _validate_launch_command(args)
    env = prepare_multi_gpu_env(args)
    with mock.patch.dict(os.environ, {key: value for key, value in env.items() if key.startswith("FSDP_")}), \\
            mock.patch.object(dataclasses, "is_cuda_available", lambda: True), \\
            mock.patch("torch.cuda.current_device", lambda: 0):
        plugin = dataclasses.FullyShardedDataParallelPlugin()
    offload = plugin.cpu_offload
    seen[name] = [plugin.fsdp_version, str(plugin.sharding_strategy), plugin.reshard_after_forward,
                  plugin.state_dict_type.name, plugin.activation_checkpointing, args.mixed_precision,
                  getattr(offload, "offload_params", type(offload).__name__ == "CPUOffloadPolicy"),
                  plugin.transformer_cls_names_to_wrap, plugin.min_num_params, plugin.cpu_ram_efficient_loading]
print(json.dumps(seen, default=str))
"""


@pytest.mark.torch("accelerate")
def test_accelerate_itself_takes_each_file_and_means_what_we_mean() -> None:
    seen = ask(ACCELERATE, files("fsdp", ".yaml"))
    hybrid = "ShardingStrategy.HYBRID_SHARD"
    classes = ["LlamaDecoderLayer"]
    assert seen["fsdp1_accelerate.yaml"] == [
        *(1, hybrid, None, "SHARDED_STATE_DICT", False, "fp16", False, classes, None, True)
    ]
    assert seen["fsdp2_accelerate.yaml"] == [
        *(2, "None", True, "SHARDED_STATE_DICT", False, "bf16", False, None, None, True)
    ]
    assert seen["fsdp2_size.yaml"] == [*(2, "None", False, "FULL_STATE_DICT", True, "no", True, None, 10**7, True)]


TRAINER = """
import json, sys
from transformers.training_args import TrainingArguments
seen = {}
for name, text in json.load(sys.stdin):
    args = TrainingArguments.__new__(TrainingArguments)
    args.fsdp, args.fsdp_config, args.activation_checkpointing = True, json.loads(text), False
    args.gradient_checkpointing = False
    seen[name] = [args._process_fsdp_args(), sorted(args.fsdp_config)]
print(json.dumps(seen))
"""


@pytest.mark.torch("transformers", "accelerate")
def test_the_trainer_itself_reads_every_key() -> None:
    golden = files("trainer", ".json")
    seen = ask(TRAINER, golden)
    second, _ = seen["fsdp2_trainer.json"]
    assert second == {
        "fsdp_version": 2,
        "cpu_offload": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_cls_names_to_wrap": "LlamaDecoderLayer,LlamaMLP",
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "activation_checkpointing": False,
        "reshard_after_forward": True,
    }
    first, _ = seen["fsdp1_trainer.json"]
    assert first["fsdp_version"] == 1
    assert (first["sync_module_states"], first["use_orig_params"]) == (True, True)
    assert (first["backward_prefetch"], first["limit_all_gathers"]) == ("BACKWARD_PRE", True)
