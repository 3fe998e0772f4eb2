"""OpenSeek on FlagScale and Megatron: sizes that are worked out by hand, and a script that starts and stops.

docs/evidence/guides/flagscale.md lists the items.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_launch.plan.build_plan import build
from hpc_launch.sites.load_layers import load
from tests.cluster.faults import wait_until
from tests.examples.codes import CODES, SITES, checkout
from tests.here import launch

OPTIONS = Path(__file__).with_name("megatron_options.txt")
VALUES = Path(__file__).parent / "standins" / "openseek.yaml"
SAYS = """\
import json, os, sys, time
said = [os.environ["RANK"], os.environ["WORLD_SIZE"], *sys.argv[1:]]
sys.stdout.write("SAID " + json.dumps(said) + "\\n")  # at once: others write to the same file
sys.stdout.flush()
time.sleep(600)
"""
"""In place of the training."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's job file, in a checkout."""
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(SITES))
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "runs"))
    return checkout(CODES["openseek/job.yaml"], tmp_path)


def megatron(words: Sequence[str]) -> dict[str, Any]:
    """The words as Megatron's parser reads them. Raises SystemExit for what it refuses."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    kinds: dict[str, Any] = {"int": int, "float": float}
    for line in OPTIONS.read_text().splitlines():
        name, _, kind = line.partition(" ")
        if kind == "flag":
            parser.add_argument(name, action="store_true")
        elif name != "#":
            parser.add_argument(name, type=kinds.get(kind.split()[0], str), nargs="*" if kind.endswith("*") else None)
    return vars(parser.parse_args(list(words)))


def words_of(job: Path, *sets: str) -> list[str]:
    """The arguments of the training on two nodes of eight GPUs."""
    plan, findings = build(load(job, site="nvidia", sets=sets).resolved)
    assert plan is not None, findings
    lines = [*plan.program.argument_lines]
    return ["".join(map(str, word)) for line in lines for word in line]


LAYOUTS: list[tuple[int, dict[str, int], tuple[int, int]]] = [
    (2, {"pp": 2, "tp": 8}, (1, 1024)),
    (2, {"pp": 2, "tp": 4}, (2, 512)),
    (2, {"pp": 1, "tp": 1}, (16, 64)),
    (2, {"pp": 2, "tp": 4, "cp": 2}, (1, 1024)),
    (2, {"pp": 2, "tp": 1, "cp": 4}, (2, 512)),
    (2, {"pp": 2, "tp": 4, "micro_batch": 4}, (2, 128)),
    (2, {"pp": 2, "tp": 8, "ep": 8, "etp": 1}, (1, 1024)),
    (2, {"pp": 1, "tp": 4, "ep": 4, "etp": 1}, (4, 256)),
    (4, {"pp": 4, "tp": 8}, (1, 1024)),
]
"""Nodes of eight GPUs, the sizes, and what is worked out of them: replicas and accumulation."""


@pytest.mark.parametrize(("nodes", "sizes", "expected"), LAYOUTS)
def test_the_arithmetic_of_a_layout(job: Path, nodes: int, sizes: dict[str, int], expected: tuple[int, int]) -> None:
    """By hand: DP = GPUs / (PP x TP x CP), and GAS = global batch / (micro batch x DP)."""
    sets = [f"--set=parallel.{name}={size}" for name, size in sizes.items()]
    sets += [f"--set=parallel.sequence_parallel={str(sizes['tp'] > 1).lower()}", f"--set=nodes={nodes}"]
    sets += ["--set=args.num-experts=64", "--set=args.hidden-size=1024"] if "ep" in sizes else []
    done = launch(job.parent, "plan", job.name, "--site=nvidia", "--json", *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    dp = 8 * nodes // (sizes["pp"] * sizes["tp"] * sizes.get("cp", 1))
    by_hand = dp, 1024 // (sizes.get("micro_batch", 1) * dp)
    assert (found["dp"], found["gradient_accumulation_steps"]) == by_hand == expected
    assert (found["world_size"], found["global_batch_size"]) == (8 * nodes, 1024)
    assert [found[name] for name in ("tp", "pp", "cp", "ep")] == [
        sizes.get(name, 1) for name in ("tp", "pp", "cp", "ep")
    ]


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["parallel.tp=3"], "HL640"),
        (["parallel.global_batch=1023"], "HL652"),
        (["parallel.tp=8", "parallel.ep=8", "args.num-experts=64"], "set `etp: 1`"),
        (["parallel.tp=1"], "HL650"),
        (["parallel.tp=16", "parallel.pp=1"], "TP = 16 exceeds the 8 GPUs of a node"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_or_named(job: Path, sets: list[str], says: str) -> None:
    done = launch(job.parent, "validate", job.name, "--site=nvidia", *(f"--set={one}" for one in sets))
    assert says in done.stdout + done.stderr


def test_stages_are_across_nodes_and_slices_within_one(job: Path) -> None:
    done = launch(job.parent, "plan", job.name, "--site=nvidia")
    assert "tensor parallel: 4 groups of 4, within a node" in done.stdout
    assert "pipeline: 8 groups of 2, across 2 nodes" in done.stdout


def test_megatron_s_parser_takes_all_arguments(job: Path) -> None:
    found = megatron(words_of(job))
    assert (found["pipeline_model_parallel_size"], found["tensor_model_parallel_size"]) == (2, 4)
    assert (found["micro_batch_size"], found["global_batch_size"], found["bf16"]) == (1, 1024, True)
    for flag in ("sequence_parallel", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"):
        assert found[flag], flag
    assert found["data_path"] == ["0.8", "data/zh_cc_text_document", "0.2", "data/code_text_document"]


def package() -> Path:
    """FlagScale's. Nothing imports it: that would change the search path."""
    spec = importlib.util.find_spec("flag_scale")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def flagscale(folder: Path, action: str, entrypoint: str = "flagscale/train/train_gpt.py") -> Path:
    """Let FlagScale's own run.py act on OpenSeek's values. Returns the folder of its logs."""
    root = package()
    experiment = {
        "exp_name": "openseek",
        "exp_dir": "out",
        "task": {"type": "train", "backend": "megatron", "entrypoint": entrypoint},
        "runner": {"backend": "torchrun", "nnodes": 1, "nproc_per_node": 2},
        "envs": {"CUDA_VISIBLE_DEVICES": "0,1"},
    }
    train = yaml.safe_load(VALUES.read_text())
    config = {"experiment": experiment, "train": train, "action": action, "hydra": {"run": {"dir": "out/hydra"}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = [sys.executable, f"{root}/run.py", "--config-path", str(folder), "--config-name", "config"]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out/logs"


@pytest.mark.slow
@pytest.mark.torch("flag_scale")
def test_the_arguments_are_those_of_the_runner_that_it_replaces(job: Path, tmp_path: Path) -> None:
    script = (flagscale(tmp_path, "dryrun") / "scripts/host_0_localhost_run.sh").read_text()
    command = re.search(r'^cmd="(.*)"$', script, re.MULTILINE)
    assert command is not None
    ours, theirs = megatron(words_of(job)), megatron(command[1].partition("train_gpt.py ")[2].split())
    folders = {"save", "load", "tensorboard_dir", "wandb_save_dir"}
    assert {name for name in ours if ours[name] != theirs[name]} == folders | {"expert_model_parallel_size"}
    assert (ours["expert_model_parallel_size"], theirs["expert_model_parallel_size"]) == (None, 1)  # Megatron's default


def test_experts_are_handed_on(job: Path) -> None:
    moe = ("parallel.tp=8", "parallel.ep=8", "parallel.etp=1", "args.num-experts=64")
    found = megatron(words_of(job, *moe, "args.moe-token-dispatcher-type=alltoall"))
    assert [found[f"expert_{name}_parallel_size"] for name in ("model", "tensor")] == [8, 1]
    assert (found["num_experts"], found["moe_token_dispatcher_type"]) == (64, "alltoall")
    assert not found["overlap_grad_reduce"]  # there is a single replica


@pytest.mark.parametrize(
    "sizes", ["--tp 8 --pp 2", "--tp 4 --pp 2 --cp 2", "--tp 8 --pp 2 --ep 8 --etp 1 --num-experts 64"]
)
def test_the_flags_alone_are_those_of_megatron(tmp_path: Path, sizes: str) -> None:
    more = "--world-size 16 --sequence-parallel --distributed-optimizer --overlap --global-batch 1024 --num-layers 32"
    done = launch(tmp_path, "config", "megatron", *sizes.split(), *more.split())
    assert done.returncode == 0, done.stderr
    found = megatron(done.stdout.split())
    given = sizes.split()
    assert found["tensor_model_parallel_size"] == int(given[1])
    assert (found["global_batch_size"], found["sequence_parallel"]) == (1024, True)


def test_it_is_started_looked_at_and_stopped(tmp_path: Path) -> None:
    """By hand a script starts, lists and stops what it started; here each is a verb, and nothing is left."""
    program = "import os, time\nprint('step 1', os.getpid(), flush=True)\ntime.sleep(600)\n"
    (tmp_path / "train.py").write_text(program)
    keys = {"name": "openseek", "site": "local", "launcher": "none", "command": [sys.executable, "train.py"]}
    (tmp_path / "job.yaml").write_text(json.dumps(keys))
    assert launch(tmp_path, "submit", "job.yaml").returncode == 0
    wait_until(lambda: "step 1" in launch(tmp_path, "logs", "@last").stdout)
    pid = int(launch(tmp_path, "logs", "@last").stdout.split("step 1")[1].split()[0])
    assert launch(tmp_path, "cancel", "@last").returncode == 0
    wait_until(lambda: json.loads(launch(tmp_path, "status", "@last", "--json").stdout)["state"] == "CANCELLED")
    assert not Path(f"/proc/{pid}").exists()
    shutil.rmtree(tmp_path / "runs")


def said(output: str) -> list[list[str]]:
    """What each process said, by rank."""
    return sorted(json.loads(text) for text in re.findall(r"SAID (\[.*\])", output))


@pytest.mark.prove
@pytest.mark.torch("flag_scale")
def test_run_and_stop_of_the_runner_are_submit_and_cancel(tmp_path: Path) -> None:
    program = tmp_path / "says.py"
    program.write_text(SAYS)
    logs = flagscale(tmp_path, "run", str(program))
    output = logs / "host_0_localhost.output"
    wait_until(lambda: output.exists() and len(said(output.read_text())) == 2, explain=output.read_text)
    wanted = said(output.read_text())
    assert (logs / "pids/host_0_localhost.pid").exists(), "without it, `stop` ends every torchrun of the machine"
    flagscale(tmp_path, "stop", str(program))
    wait_until(lambda: not running(program))
    keys = {"name": "openseek", "site": "local", "launcher": "torchrun", "processes_per_node": 2, "script": "says.py"}
    keys |= {"args": wanted[0][2:], "environment": {"python": sys.executable}}
    (tmp_path / "job.yaml").write_text(json.dumps(keys))
    assert launch(tmp_path, "submit", "job.yaml").returncode == 0
    wait_until(lambda: len(said(launch(tmp_path, "logs", "@last").stdout)) == 2)
    assert said(launch(tmp_path, "logs", "@last").stdout) == wanted
    assert launch(tmp_path, "cancel", "@last").returncode == 0
    wait_until(lambda: not running(program))


def running(program: Path) -> list[str]:
    """The processes that have a program among their words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] if str(program).encode() in path.read_bytes() else []
    return found


@pytest.mark.prove
@pytest.mark.torch("flag_scale")
def test_the_options_are_those_of_megatron_s_own_parser() -> None:
    """In FlagScale's copy of Megatron-LM, which adds the path of a tokenizer."""
    root = package()
    path = os.pathsep.join([str(root), f"{root}/third_party/Megatron-LM"])
    words = [sys.executable, "-W", "ignore", "-c", PARSER, str(OPTIONS)]
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["different: []"]), done.stdout + done.stderr


PARSER = """\
import argparse, sys
from megatron.training.arguments import add_megatron_arguments
parser = argparse.ArgumentParser(allow_abbrev=False)
add_megatron_arguments(parser)
theirs = {"--tokenizer-path str", "--hybrid-layer-pattern str"}  # FlagScale's own, and a newer Megatron-LM's
for one in parser._actions:
    kind = "flag" if one.nargs == 0 else getattr(one.type, "__name__", "str") + " *" * (one.nargs == "*")
    theirs |= {f"{name} {kind}" for name in one.option_strings}
print("different:", sorted({line.strip() for line in open(sys.argv[1]) if line[0] != "#"} - theirs))
"""
