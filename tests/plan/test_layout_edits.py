"""A row of `plan --compare` written into a job file is what the job then trains with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from hpc_launch.base.errors import UsageError
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.yaml_source import parse_document
from hpc_launch.layouts.write_layout import with_edits
from hpc_launch.plan.job_training import JobTraining, job_training
from hpc_launch.plan.layout_edits import LayoutEdits, layout_edits
from hpc_launch.prepare.job_layouts import JobLayouts, job_layouts
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


def _edits(text: str, checked: CheckedJob, now: TrainingSetup, chosen: TrainingSetup) -> LayoutEdits:
    document, _ = parse_document(text, "job.yaml")
    assert document is not None
    return layout_edits(checked.loaded.resolved.job, document.data, now, chosen)


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
    """The setup as a job file determines it: batch sizes only by their results, the schedule by VPP."""
    layout = setup.layout
    sizes = replace(layout.parallel, global_batch=layout.global_batch, sequence_parallel=False, overlap=False)
    return asdict(setup) | {"layout": (sizes, layout.world_size, layout.microbatches), "schedule": ""}


@pytest.mark.parametrize("name", JOBS)
def test_what_is_written_is_what_the_job_trains_with(name: str) -> None:
    text = JOB + JOBS[name]
    checked, found = _compared(text)
    rows = found.found.layouts
    assert rows
    for row in [*rows[:6], *rows[6 :: max(1, len(rows) // 6)]]:
        edits, notes = _edits(text, checked, found.now, row.setup)
        new = with_edits(text, edits)
        assert new.startswith(JOB)
        after, wanted = _known(_setup(new)), _known(row.setup)
        if any("recomputation" in note for note in notes):
            after["recompute"] = wanted["recompute"]
        if row.setup.framework != "megatron":
            for sizes in (after, wanted):
                parallel, *rest = sizes["layout"]
                sizes["layout"] = (replace(parallel, distributed_optimizer=False), *rest)
        assert after == wanted, new


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


def test_comments_and_order_stay() -> None:
    text = JOB + JOBS["zero"]
    checked, found = _compared(text)
    chosen = next(one.setup for one in found.found.layouts if one.setup.sharding == "zero3")
    edits, _ = _edits(text, checked, found.now, chosen)
    micro = chosen.layout.parallel.micro_batch
    batch = f", micro_batch: {micro}" if edits[0].values.get("micro_batch") else ""
    assert with_edits(text, edits).startswith(JOB + "strategy: {name: zero3, global_batch: 256" + batch)
    assert with_edits(text, edits).endswith("}  # guessed\n")


def test_offloading_needs_the_memory_of_the_host() -> None:
    text = JOB + JOBS["zero"]
    _, found = _compared(text)
    assert any(one.setup.offload_optimizer for one in found.found.layouts)
    Path("here.yaml").write_text(SITE.replace("1T", "40G"))
    _, found = _compared(text)
    assert not any(one.setup.offload_optimizer for one in found.found.layouts)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("strategy: {name: zero2, file: ds.json}\n", "a file of your own: ds.json"),
        ("strategy: zero2\nargs: [--per_device_train_batch_size, 8]\n", "the batch is in a list"),
    ],
)
def test_what_cannot_be_written_is_said(more: str, words: str) -> None:
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}')
    text = JOB + more
    checked, found = _compared(text)
    other = next(
        one.setup
        for one in found.found.layouts
        if one.setup.layout.microbatches != found.now.layout.microbatches or "file" in more
    )
    with pytest.raises(UsageError, match=words):
        _edits(text, checked, found.now, other)
