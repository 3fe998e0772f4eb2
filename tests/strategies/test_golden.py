"""Each form of file against its golden file, and against the library that reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.marks import prove
from tests.strategies.conftest import Config

EXPECTED = Path(__file__).parent / "expected"
STAGE_3 = ("deepspeed", "--zero-stage", "3", "--bf16")
CASES = {
    "zero0.json": ("deepspeed", "--zero-stage", "0"),
    "zero1_fp16.json": ("deepspeed", "--zero-stage", "1", "--fp16", "--gradient-clipping", "0", "--no-overlap"),
    "zero2_cpu.json": ("deepspeed", "--zero_stage", "2", "--offload_optimizer", "--bf16"),
    "zero3.json": (*STAGE_3, "--global-batch", "256", "--micro-batch", "4", "--world-size", "16", "--buckets", "5e7"),
    "zero3_cpu.json": (*STAGE_3, "--offload-optimizer", "--offload-param"),
    "zero3_nvme.json": (*STAGE_3, "--offload-optimizer=nvme", "--offload-param=nvme", "--nvme-path", "/local/nvme"),
    "zero2_auto.json": ("deepspeed", "--auto", "--gradient-accumulation", "16", "--bf16", "--offload-optimizer"),
    "zero3_auto.json": (*STAGE_3[:3], "--auto"),
    "zero1_parallel.json": (
        *("deepspeed", "--zero-stage", "1", "--world-size", "8", "--model-parallel", "2", "--micro-batch", "2"),
    ),
    "fsdp1_accelerate.yaml": (
        *("fsdp", "--version", "1", "--sharding-strategy", "HYBRID_SHARD", "--wrap-class", "LlamaDecoderLayer"),
        *("--nodes", "2", "--world-size", "8", "--mixed-precision", "fp16"),
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
        *("launcher", "--nodes", "4", "--gpus-per-node", "8", "--master-addr", "192.168.1.100"),
        *("--node-rank", "1", "--cpus-per-node", "64", "--script", "my train.py", "--", "--note", "it's $HOME"),
    ),
    "deepspeed_node0.sh": (
        *("launcher", "--nodes", "4", "--gpus_per_node", "8", "--master_addr", "192.168.1.100"),
        *("--master_port", "29500", "--node_rank", "0", "--use_deepspeed", "--script", "src/train.py"),
        *("--", "--config", "config.yaml", "--deepspeed", "config/ds_config.json"),
    ),
}


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


@pytest.mark.parametrize("case", CASES)
def test_a_name_with_json_gives_json_with_the_same_values(case: str, config: Config) -> None:
    done, text = config(*CASES[case][:1], "--output", "out.json", *CASES[case][1:]), (EXPECTED / case).read_text()
    if case.endswith(".sh") or case == "hostfile":
        assert (done.code, Path("out.json").exists()) == (2, False)
        assert "cannot write out.json: a script or a hostfile is not JSON" in done.err
        return
    assert done.code == 0, done.err
    written = json.loads(Path("out.json").read_text())
    if case == "megatron.txt":
        words = (line.split() for line in text.splitlines())
        assert {key: str(value) for key, value in written["args"].items()} == {
            key.removeprefix("--"): value[0] if value else "True" for key, *value in words
        }
    else:
        assert written == yaml.safe_load(text)
    if case.startswith("fsdp"):
        assert config("fsdp", "--check", "out.json").code == 0


def test_shellcheck_finds_nothing() -> None:
    scripts = sorted(EXPECTED.glob("*.sh"))
    checked = subprocess.run(
        [str(Path(sys.executable).with_name("shellcheck")), *scripts], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.torch("deepspeed", "accelerate", "transformers")
@pytest.mark.parametrize(
    "case",
    [
        "zero3.json",
        prove("zero3_auto.json"),
        prove("fsdp1_accelerate.yaml"),
        prove("fsdp2_size.yaml"),
        prove("fsdp1_trainer.json"),
        prove("fsdp2_trainer.json"),
    ],
)
def test_the_library_itself_reads_every_key_and_takes_the_file(case: str, config: Config) -> None:
    more = ["--world-size", "16"] if case == "zero3.json" else ["--auto"] if "auto" in case else []
    done = config(CASES[case][0], "--check", str(EXPECTED / case), *more, library=True)
    assert (done.code, done.out) == (0, "")
