"""What `plan --search` varies, and the keys of a row: with them, the job trains with its layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import asdict, replace

from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.plan.job_estimate import JobTraining, job_training, layout_keys
from hpc_launch.prepare.job_plan import JobLayouts, job_layouts
from hpc_launch.prepare.prepare import CheckedJob, check_job

SITE = """\
name: here
scheduler: slurm
node_classes: {gpu: {cpus: 64, memory: 1T, gpus: 8, gpu_type: h100, gpu_memory: 80G}}
queues: {gpu: {partition: gpu, node_class: gpu}}
"""
JOB = "name: x  # mine\nscript: train.py\nnodes: 4\nmodel: {name: llama3-8b, sequence: 4096}\nprecision: bf16\n"
JOBS = {
    "zero": "strategy: {name: zero1, global_batch: 256}  # guessed\n",
    "zero with offloading": "strategy:\n  name: zero3\n  offload_optimizer: cpu\n  offload_param: cpu\n"
    "  micro_batch: 8\n",
    "the Trainer's zero": "strategy: {name: zero2, for: trainer}\n"
    "args:\n  per_device_train_batch_size: 8   # too many\n  gradient_checkpointing: false\n",
    "the Trainer's FSDP 1": "strategy: {name: fsdp, for: trainer, micro_batch: 4, gradient_accumulation: 2, "
    "fsdp: {version: 1}}\nargs: {fsdp: true}\n",
    "Accelerate's FSDP": "strategy: {name: fsdp, for: accelerate, global_batch: 512}\n"
    "args: {micro: '${strategy.micro_batch}'}\n",
    "short": "strategy: ddp\nargs: {per_device_train_batch_size: 16}\n",
    "own model parallelism": "strategy: {name: fsdp, global_batch: 64}\nparallel: {tp: 2}\n",
    "megatron": "strategy: megatron\nparallel: {tp: 2, pp: 2, global_batch: 256}\n"
    "args: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.yaml").write_text(SITE)
    (tmp_path / "train.py").touch()


def _compared(text: str) -> tuple[CheckedJob, JobLayouts]:
    Path("job.yaml").write_text(text)
    checked = check_job(Path("job.yaml"), site="here.yaml")
    return checked, job_layouts(checked, None)


def _setup(text: str) -> TrainingSetup:
    Path("job.yaml").write_text(text)
    checked = check_job(Path("job.yaml"), site="here.yaml")
    assert [found for found in checked.findings if found.severity == "error"] == []
    assert checked.size is not None
    assert checked.model is not None
    training = job_training(checked.loaded.resolved.job, checked.size, checked.model, None)
    assert isinstance(training, JobTraining)
    return training.setup


def _known(setup: TrainingSetup) -> dict[str, Any]:
    """The setup as a job file determines it: batch sizes only by their results."""
    layout = setup.layout
    sizes = replace(layout.parallel, global_batch=layout.global_batch, sequence_parallel=False, overlap=False)
    return asdict(setup) | {"layout": (sizes, layout.world_size, layout.microbatches)}


@pytest.mark.parametrize("name", [name for name in JOBS if name not in {"the Trainer's zero", "short"}])
def test_the_keys_of_a_layout_are_what_the_job_trains_with(name: str) -> None:
    checked, found = _compared(JOB + JOBS[name])
    rows = found.found.layouts
    assert rows
    for row in [*rows[:6], *rows[6 :: max(1, len(rows) // 6)]]:
        keys = layout_keys(checked.loaded.resolved.job, row.setup)
        other = yaml.safe_load(JOB + JOBS[name]) | keys
        after, wanted = _known(_setup(yaml.safe_dump(other))), _known(row.setup)
        after["recompute"] = wanted["recompute"]  # but for FSDP's, up to the program
        if row.setup.framework != "megatron":
            for sizes in (after, wanted):
                parallel, *rest = sizes["layout"]
                sizes["layout"] = (replace(parallel, distributed_optimizer=False), *rest)
        assert after == wanted, keys


def test_the_choices_are_those_that_the_strategy_can_be_told() -> None:
    kinds = {name: {one.setup.sharding for one in _compared(JOB + JOBS[name])[1].found.layouts} for name in JOBS}
    assert kinds["zero"] <= {"none", "zero1", "zero2", "zero3"}
    assert {"zero1", "zero3"} <= kinds["zero"]
    assert kinds["the Trainer's FSDP 1"] == {"fsdp1", "hsdp"}
    assert kinds["Accelerate's FSDP"] == {"fsdp2"}
    assert kinds["megatron"] == {"distributed_optimizer", "none"}
    _, own = _compared(JOB + JOBS["own model parallelism"])
    assert {one.setup.layout.parallel.tp for one in own.found.layouts} > {1, 2}
    _, zero = _compared(JOB + JOBS["zero"])
    assert {one.setup.layout.model_parallel for one in zero.found.layouts} == {1}


@pytest.mark.parametrize(("name", "offloads"), [("zero", False), ("zero with offloading", True)])
def test_offloading_stays_as_the_job_has_it(name: str, *, offloads: bool) -> None:
    _, found = _compared(JOB + JOBS[name])
    assert {one.setup.offload_optimizer for one in found.found.layouts} == {offloads}
