"""`strategy:` and `parallel:`: what is refused, with its place, and what the job then writes, sets and hands on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.prepare.explain import explain
from hpc_launch.prepare.prepare import PreparedJob, prepare_job, validate_job
from hpc_launch.script.parts import MARKER, part

SITE = """\
name: here
scheduler: slurm
node_classes:
  gpu: {cpus: 32, memory: 128G, gpus: 4, gpu_type: a100}
queues:
  gpu: {partition: gpu, node_class: gpu}
"""
GOOD = "name: x\nsite: here\nnodes: 2\nscript: train.py\n"
"""Two nodes of four GPUs; what a test adds begins in line 5."""

OWN = """\
{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_clipping": 1.0,
  "zero_allow_untested_optimizer": true,
  "zero_optimization": {"stage": 2, "overlap_comm": true}
}
"""
OWN_FSDP = """\
distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: NO_WRAP
"""


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    (folder / "sites" / "here.yaml").write_text(SITE)
    (folder / "own.json").write_text(OWN)
    (folder / "auto.json").write_text(OWN.replace(": 2,", ': "auto",', 1))
    (folder / "thirty.json").write_text(OWN.replace('micro_batch_size_per_gpu": 2', 'batch_size": 30'))
    (folder / "own.yaml").write_text(OWN_FSDP)
    (folder / "fsdp.json").write_text('{"auto_wrap_policy": "NO_WRAP"}')
    return folder


def ready(folder: Path, more: str) -> PreparedJob:
    (folder / "job.yaml").write_text(GOOD + more)
    return prepare_job(folder / "job.yaml")


def written(made: PreparedJob) -> dict[str, Any]:
    """The configuration as bash would write it: what stands between the lines of the here-document."""
    text = made.script.partition("<<'END'")[2].partition("\n")[2].partition("\nEND\n")[0]
    data: dict[str, Any] = json.loads(text)
    return data


def variables(made: PreparedJob) -> dict[str, str]:
    spelt = {line.name: line.value for line in explain(made) if line.kind == "variable"}
    return {name.removeprefix("$"): value for name, value in spelt.items()}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # Keys that contradict each other, or that nothing would read.
        ("strategy: {name: zero2, fsdp: {version: 1}}", ["job.yaml:5:31 HL670"]),
        ("strategy: {name: fsdp, fsdp: {version: 1}}", ["job.yaml:5:30 HL670"]),
        ("strategy: {name: ddp, for: trainer}", ["job.yaml:5:28 HL670"]),
        ("strategy: {name: zero2, file: own.json, micro_batch: 2}", ["job.yaml:5:54 HL670"]),
        ("strategy: {name: megatron, micro_batch: 2}\nparallel: {tp: 1}", ["job.yaml:5:41 HL670"]),
        ("strategy: zero1\nparallel: {tp: 2, distributed_optimizer: true}", ["job.yaml:6:42 HL670"]),
        # A file that nobody writes.
        ("strategy: ddp\nargs: {c: '${strategy.config}'}", ["job.yaml:6:11 HL671"]),
        ("args: {c: '${strategy.micro_batch}'}", ["job.yaml:5:11 HL206"]),
        (
            "strategy: {name: ddp, micro_batch: 2}\nargs: {c: '${strategy.micro_batch}'}\nqueue: x",
            ["job.yaml:7:8 HL302"],
        ),
        # ZeRO: the batch, and what a stage cannot offload.
        ("strategy: {name: zero1, micro_batch: 3, global_batch: 100}", ["job.yaml:5:55 HL610"]),
        ("strategy: {name: zero1, micro_batch: 2, global_batch: 64}\nparallel: {tp: 3}", ["job.yaml:6:11 HL640"]),
        ("strategy: {name: ddp, micro_batch: 3, global_batch: 100}", ["job.yaml:5:53 HL610"]),
        ("strategy: {name: zero2, offload_param: cpu}", ["job.yaml:5:40 HL612"]),
        ("strategy: {name: zero3, nvme_path: /local}", ["job.yaml:5:36 HL613"]),
        # FSDP.
        ("strategy: {name: fsdp, for: trainer, fsdp: {sharding_strategy: NO_SHARD}}", ["job.yaml:5:64 HL627"]),
        ("strategy: {name: fsdp, for: accelerate, fsdp: {min_params: 9}}", ["job.yaml:5:60 HL623"]),
        ("strategy: fsdp\nenv: {CUDA_DEVICE_MAX_CONNECTIONS: 1}", ["job.yaml:6:36 HL655"]),
        # Layouts: the world size comes from the plan, the model from the job's own arguments.
        ("strategy: megatron\nparallel: {tp: 4, pp: 3}", ["job.yaml:6:11 HL640"]),
        ("strategy: megatron\nparallel: {pp: 4}\nargs: {num-layers: 6}", ["job.yaml:6:16 HL645"]),
        ("strategy: megatron\nparallel: {tp: 4}\nargs: {num-attention-heads: 6}", ["job.yaml:6:16 HL643"]),
        # What an elastic run, or a number format, cannot do.
        ("strategy: {name: ddp, global_batch: 64}\nnodes: 1..2", ["job.yaml:5:37 HL675"]),
        ("strategy: ddp\nparallel: {tp: 4}\nnodes: 1..3", []),
        ("strategy: ddp\nparallel: {pp: 8}\nnodes: 1..2", ["job.yaml:6:11 HL640"]),
        # A file of one's own: missing, or against the job.
        ("strategy: {name: zero2, file: none.json}", ["job.yaml:5:31 HL201"]),
        ("strategy: {name: zero2, file: own.json}\nprecision: bf16", ["own.json HL673"]),
        ("strategy: {name: fsdp, for: accelerate, file: own.yaml}\nprecision: fp16", ["own.yaml:2:1 HL673"]),
        ("strategy: {name: fsdp, for: accelerate, file: own.json}", ["own.json HL604", "own.json HL604"]),
        ("strategy: {name: zero2, file: fsdp.json}", ["fsdp.json HL610", "fsdp.json HL673"]),
        ("strategy: {name: zero2, file: own.yaml}", ["own.yaml:1:1 HL600"]),
        ("strategy: {name: zero2, file: auto.json}", ["auto.json:2:3 HL605"]),
        ("strategy: {name: zero2, file: thirty.json}", ["thirty.json:2:3 HL610"]),
    ],
)
def test_what_does_not_hold_together_is_refused_where_it_stands(folder: Path, more: str, expected: list[str]) -> None:
    same_lines = GOOD.replace("nodes: 2", "account: a") if "nodes: 1" in more else GOOD
    (folder / "job.yaml").write_text(same_lines + more + "\n")
    faults = [found for found in validate_job(folder / "job.yaml") if found.severity == "error"]
    assert [f"{found.place} {found.code}".removeprefix(f"{folder}/") for found in faults] == expected
    for found in faults:
        assert found.hint, found
        assert "--" not in found.hint or "--num" in found.hint, "an option of `config` is no help here"
    assert not (folder / "runs").exists()


def test_the_batch_follows_from_the_processes_of_the_plan(folder: Path) -> None:
    made = ready(
        folder,
        "strategy: {name: zero1, micro_batch: 2, global_batch: 64}\nparallel: {tp: 2}\n"
        "args: {steps: '${strategy.gradient_accumulation}', dp: '${parallel.dp}'}\n",
    )
    data = written(made)
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [data[key] for key in sizes] == [64, 2, 8]  # 64 / (2 × 4 replicas of two GPUs each)
    assert "--steps 8" in made.script
    assert "--dp 4" in made.script


def test_a_mere_name_changes_nothing_until_the_job_names_the_file(folder: Path) -> None:
    assert "deepspeed.json" not in ready(folder, "strategy: zero2\n").script
    made = ready(folder, "strategy: zero2\nargs: {deepspeed_config: '${strategy.config}'}\n")
    assert written(made)["zero_optimization"]["stage"] == 2
    assert '--deepspeed_config "$HPC_LAUNCH_STRATEGY_CONFIG"' in made.script


def by_bash(made: PreparedJob, folder: Path) -> str:
    """The file as bash writes it from the script."""
    before = f"attempt_dir={folder} HPC_LAUNCH_JOB_ID=17 HPC_LAUNCH_ATTEMPT_DIR={folder}"
    after = f"job_environment\n{part('strategy')}"
    subprocess.run(["bash", "-euc", "\n".join((before, made.script.partition(MARKER)[0], after))], check=True)
    return (folder / "deepspeed.json").read_text()


def test_bash_writes_the_file_byte_for_byte(folder: Path) -> None:
    hostile = OWN.replace("{\n", '{\n  "wandb": {"group": "$HOME `id` \'x\' \\" \\\\ END $(false)"},\n', 1)
    (folder / "own.json").write_text(hostile.replace("\n", "\r\n"))
    assert by_bash(ready(folder, "strategy: {name: zero2, file: own.json}\n"), folder) == hostile


def test_what_only_the_job_knows_is_filled_in_there_and_nothing_else(folder: Path) -> None:
    path = '/local/<HPC_LAUNCH_JOB_ID> $HOME `id` "x" \\$(false)/${job.id}'
    asked = json.dumps({"name": "zero3", "offload_param": "nvme", "nvme_path": path})
    made = ready(folder, f"strategy: {asked}\n")
    offload = json.loads(by_bash(made, folder))["zero_optimization"]["offload_param"]
    assert offload["nvme_path"] == path.replace("${job.id}", "17")
    shown = {line.key: line.value for line in explain(made)}
    assert shown["deepspeed.json:zero_optimization.offload_param.nvme_path"].endswith("/$HPC_LAUNCH_JOB_ID")


def test_text_that_no_reader_can_see_is_written_as_escapes(folder: Path) -> None:
    (folder / "own.json").write_text(OWN.replace("{\n", '{\n  "wandb": {"group": "a\u202eb"},\n', 1))
    made = ready(folder, "strategy: {name: zero2, file: own.json}\n")
    assert "a\\u202eb" in made.script
    assert written(made)["wandb"] == {"group": "a\u202eb"}


def test_explain_names_the_line_of_each_value(folder: Path) -> None:
    made = ready(folder, "strategy: {name: zero3, offload_param: cpu}\nprecision: bf16\n")
    lines = {line.key: line for line in explain(made) if line.kind == "file"}
    place = lines["deepspeed.json:zero_optimization.offload_param.device"].origin.place
    assert place is not None
    assert (place.line, place.column) == (5, 40)
    assert lines["deepspeed.json:bf16.enabled"].origin.short() == "job.yaml:6"
    assert "default" in lines["deepspeed.json:gradient_clipping"].origin.note
    made = ready(folder, "strategy: {name: zero2, file: own.json}\n")
    lines = {line.key: line for line in explain(made) if line.kind == "file"}
    assert lines["deepspeed.json:zero_optimization.stage"].origin.short() == "own.json:5"
    made = ready(folder, "strategy: megatron\nparallel: {tp: 2}\n")
    flags = {line.key: line for line in explain(made) if line.kind == "argument"}
    assert flags["--tensor-model-parallel-size"].value == "2"
    assert flags["--tensor-model-parallel-size"].origin.short() == "job.yaml:6"


def test_megatron_gets_its_flags_before_its_own_arguments(folder: Path) -> None:
    made = ready(
        folder,
        "strategy: megatron\nparallel: {tp: 2, ep: 2, sequence_parallel: true}\nprecision: bf16\n"
        "args: {num-experts: 8, lr: 1e-4}\n",
    )
    lines = [" ".join(str(part) for text in line for part in text) for line in made.plan.program.argument_lines]
    assert lines[0] == "--tensor-model-parallel-size 2"
    assert "--expert-model-parallel-size 2" in lines
    assert lines[-3:] == ["--sequence-parallel", "--num-experts 8", "--lr 1e-4"]
    assert variables(made)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    made = ready(folder, "strategy: megatron\nparallel: {tp: 2}\nenv: {CUDA_DEVICE_MAX_CONNECTIONS: 8}\n")
    assert variables(made)["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert [found.code for found in made.warnings] == ["HL655"]


def test_the_trainer_has_to_be_told_of_its_file(folder: Path) -> None:
    made = ready(folder, "strategy: {name: zero2, for: trainer}\n")
    assert [(found.code, str(found.place)) for found in made.warnings] == [("HL677", f"{folder}/job.yaml:5:30")]
    assert written(made)["train_micro_batch_size_per_gpu"] == "auto"
    handed_on = "fsdp_config: '${strategy.config}'"
    made = ready(folder, f"strategy: {{name: fsdp, for: trainer}}\nargs: {{{handed_on}}}\n")
    assert [(found.code, found.hint) for found in made.warnings] == [("HL677", "add `fsdp: true` to the arguments")]
    made = ready(folder, f"strategy: {{name: fsdp, for: trainer}}\nargs: {{fsdp: true, {handed_on}}}\n")
    assert not made.warnings
    assert written(made)["version"] == 2


def test_accelerate_is_told_by_its_environment(folder: Path) -> None:
    made = ready(folder, "strategy: {name: zero3, for: accelerate}\nprecision: bf16\n")
    told = variables(made)
    assert told["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert told["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert told["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "$HPC_LAUNCH_STRATEGY_CONFIG"
    # Filled in by the width of a model that says it; others would fail at the start.
    assert written(made)["zero_optimization"]["stage3_prefetch_bucket_size"] == 50_000_000
    assert written(made)["train_batch_size"] == "auto"
    assert variables(ready(folder, "strategy: {name: ddp, for: accelerate}\n"))["ACCELERATE_MIXED_PRECISION"] == "no"
    own = OWN.replace('"gradient_clipping": 1.0', '"gradient_clipping": 1.0, "bf16": {"enabled": true}')
    (folder / "own.json").write_text(own)
    made = ready(folder, "strategy: {name: zero2, for: accelerate, file: own.json}\n")
    assert variables(made)["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_accelerate_is_told_the_accumulation_that_the_job_determines(folder: Path, name: str) -> None:
    told = variables(ready(folder, f"strategy: {{name: {name}, for: accelerate, micro_batch: 2, global_batch: 64}}\n"))
    assert told["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"
    told = variables(ready(folder, f"strategy: {{name: {name}, for: accelerate, micro_batch: 2}}\n"))
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS" not in told, "the training decides"


@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero1", "zero3"])
def test_arguments_cannot_contradict_the_batch(folder: Path, name: str) -> None:
    strategy = f"strategy: {{name: {name}, micro_batch: 2, global_batch: 64}}\n"
    (folder / "job.yaml").write_text(f"{GOOD}{strategy}args: {{per-device-train-batch-size: 4}}\n")
    (found,) = validate_job(Path("job.yaml"))
    assert str(found).startswith(
        "job.yaml:6:37: HL610 `--per-device-train-batch-size` is 4, but `strategy:` makes it 2"
    )
    assert "${strategy.micro_batch}" in (found.hint or "")
    (folder / "job.yaml").write_text(f"{GOOD}{strategy}args: [--gradient_accumulation_steps, 4]\n")
    assert not [found for found in validate_job(Path("job.yaml")) if found.severity == "error"]
