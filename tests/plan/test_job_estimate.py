"""What `plan` shows of a job: layout, batch, memory and cost; and what is refused because of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_launch.base.errors import UsageError
from hpc_launch.performance.measured_pace import CheckpointInterval, Exposure, MeasuredPace
from hpc_launch.plan.job_estimate import JobTraining
from hpc_launch.prepare.job_plan import JobPlan, job_layouts, job_plan
from hpc_launch.prepare.prepare import CheckedJob, check_job, validate_job
from hpc_launch.schedulers.scheduler import Balance
from hpc_launch.view.layout_table import layout_lines
from hpc_launch.view.plan_text import plan_json, plan_lines
from tests.forked import hpc_launch_text

SITE = """\
name: here
scheduler: slurm
node_classes:
  gpu: {cpus: 64, memory: 1T, gpus: 8, gpu_type: h100, gpu_memory: 80G}
queues:
  gpu: {partition: gpu, node_class: gpu, limits: [{nodes: 1-, time: 24:00:00}]}
defaults: {retry: 1}
"""
GOOD = "name: x\nscript: train.py\nqueue: gpu\ntime: 12:00:00\n"
"""What a test adds begins in line 5."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.yaml").write_text(SITE)
    (tmp_path / "train.py").touch()
    return tmp_path


def checked(more: str, sets: Sequence[str] = ()) -> CheckedJob:
    Path("job.yaml").write_text(GOOD + more)
    return check_job(Path("job.yaml"), site="here.yaml", sets=sets)


def planned(
    more: str, pace: MeasuredPace | None = None, balance: Balance | None = None, sets: Sequence[str] = ()
) -> JobPlan:
    plan = job_plan(checked(more, sets), pace=pace, balance=balance)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("name", "known"),
    [("use_lora", False), ("lora-rank", False), ("qlora", False), ("exploration", True), ("q-lora-rank", True)],
)
def test_adapters_are_known_by_an_argument(name: str, known: bool) -> None:
    plan = planned(f"model: llama3-8b\nstrategy: ddp\nargs: {{{name}: 8}}\n")
    assert plan.estimate is not None
    assert isinstance(plan.estimate.training, JobTraining) is known


def findings(more: str) -> list[str]:
    Path("job.yaml").write_text(GOOD + more)
    return [str(found) for found in validate_job(Path("job.yaml"), site="here.yaml")]


def test_the_groups_and_their_links() -> None:
    text = "\n".join(plan_lines(planned("nodes: 2\nstrategy: megatron\nparallel: {pp: 2, tp: 4, global_batch: 8}\n")))
    assert "16 processes = DP 2 × TP 4 × PP 2 × CP 1" in text
    assert "tensor parallel: 4 groups of 4, within a node" in text
    assert "pipeline: 8 groups of 2, across 2 nodes" in text
    assert "model       unknown: set or correct `model:`" in text


def test_states_larger_than_the_gpu_are_an_error() -> None:
    (found,) = findings("model: llama3-70b\nstrategy: {name: zero3, micro_batch: 1}\nprecision: bf16\n")
    assert found.startswith("job.yaml:6:11: HL685 parameters (16.4 GiB), gradients")
    assert "more than the 79.6 GiB of H100 SXM 80 GB" in found


def test_activations_beyond_the_gpu_are_a_warning_with_a_hint() -> None:
    Path("job.yaml").write_text(GOOD + "model: llama3-8b\nstrategy: {name: fsdp, micro_batch: 16}\nprecision: bf16\n")
    (found,) = validate_job(Path("job.yaml"), site="here.yaml")
    assert str(found).startswith("job.yaml:6:11: HL686 warning: the training needs about ")
    assert "recompute all activations" in (found.hint or "")


@pytest.mark.parametrize(
    "more",
    [
        "strategy: {name: zero3, micro_batch: 1}\n",
        "model: llama3-70b\n",
        "model: llama3-70b\nstrategy: ddp\nargs: {use_lora: true}\n",
        "model: llama3-70b\nstrategy: ddp\ngpus_per_node: 0\n",
    ],
    ids=["no model", "no strategy", "adapters", "no GPUs"],
)
def test_nothing_is_said_of_what_is_not_known(more: str) -> None:
    assert findings(more) == []


def pace(processes: int) -> MeasuredPace:
    seen = CheckpointInterval(60, 9, 600, Exposure(100 * 3600, 5), 2)
    return MeasuredPace(
        run="earlier-1",
        step_s=30,
        attempt=2,
        steps=500,
        total=10_000,
        processes=processes,
        start_s=240,
        interval=seen,
        longest_save_s=90,
        peak_mib=40_960,
    )


MEGATRON = (
    "nodes: 2\nmodel: llama3-8b\nstrategy: megatron\nprecision: bf16\nparallel: {tp: 4, pp: 2, global_batch: 512}\n"
)


@pytest.mark.parametrize(
    ("limit", "said"),
    [("00:01:00", "has no time for a single step"), ("12:00:00", "1000 steps: "), ("4:00:00", "jobs of 04:00:00")],
)
def test_the_steps_are_divided_into_jobs(limit: str, said: str) -> None:
    plan = planned(MEGATRON + "args: {train-iters: 1000}\n", pace(16), sets=[f"time={limit}"])
    assert said in "\n".join(plan_lines(plan))


def test_walltime_cost_and_checkpoints_of_a_measured_run() -> None:
    plan = planned(MEGATRON, pace(16), Balance("proj", "gres/gpu", 6000, 1500))
    text = "\n".join(plan_lines(plan))
    assert "30 s per step, measured by 500 steps of earlier-1 (attempt 2)" in text
    # 43200 s - 240 s of start hold 1432 steps: 10,000 take 7 jobs.
    assert "10000 steps: 3 d 11 h, 7 jobs of 12:00:00" in text
    assert "the queue allows 1-00:00:00 per job" in text
    assert "would lose the least" in text
    assert "warning: at least 3 m 00 s before the time limit" in text
    assert "measured: 40.0 GiB in use on the fullest GPU of earlier-1" in text
    assert "at most 192 GPU-hours per job" in text
    assert "account proj: 4,500 of 6,000 GPU-hours left (25% used)" in text
    found = plan_json(plan)
    assert (found["time"]["jobs"], found["time"]["wall_s"]) == (7, 300_000 + 7 * 240)
    assert found["gpu_hours"] == pytest.approx(301_680 * 16 / 3600)


def earlier(job: str, processes: int) -> MeasuredPace:
    """The pace of a run of this job."""
    folder = Path("earlier-1")
    folder.mkdir()
    (folder / "job.yaml").write_text(GOOD + job)
    (folder / "site.yaml").write_text(SITE)
    return replace(pace(processes), folder=folder)


@pytest.mark.parametrize(
    ("more", "range_"),
    [("nodes: 4\n", 1.4), ("nodes: 8\n", 1.4), ("nodes: 2\nargs: {recompute-granularity: full}\n", 2.3)],
)
def test_a_pace_is_scaled_by_the_ratio_of_the_estimates(more: str, range_: float) -> None:
    before = planned(MEGATRON).step_s
    of = earlier(MEGATRON, 16)
    plan = planned(MEGATRON.replace("nodes: 2\n", more), of)
    after = planned(MEGATRON.replace("nodes: 2\n", more)).step_s
    assert before is not None
    assert after is not None
    found = plan_json(plan)["time"]
    assert found["step_s"] == pytest.approx(30 * after / before)
    assert (found["high_s"] / found["step_s"], found["step_s"] / found["low_s"]) == pytest.approx((range_, range_))
    assert found["source"] == "scaled"
    assert found["steps"] is None, "the run's last step is not this job's"
    text = "\n".join(plan_lines(plan))
    assert "scaled by the estimates of both layouts" in text
    assert "from 30 s, measured by 500 steps of earlier-1 (attempt 2) with 16 processes" in text


def test_a_run_of_the_same_training_is_not_scaled() -> None:
    of = earlier(MEGATRON, 16)
    found = plan_json(planned(MEGATRON + "args: {train-iters: 100}\n", of))["time"]
    assert (found["step_s"], found["low_s"], found["high_s"], found["source"]) == (30, 30, 30, "measured")
    assert found["steps"] == 100


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (MEGATRON.replace("llama3-8b", "llama3-70b"), "another model"),
        (MEGATRON.replace("llama3-8b", "{name: llama3-8b, sequence: 4096}"), "another sequence length"),
        (MEGATRON.replace("bf16", "fp8"), "another precision"),
        ("nodes: 2\n", "because of earlier-1: its model is unknown"),
        ("nodes: 2\nmodel: llama3-8b\nstrategy: ddp\n", "its batch is unknown"),
    ],
)
def test_a_run_that_cannot_be_compared_gives_no_time(run: str, why: str) -> None:
    of = earlier(run, 16)
    job = MEGATRON.replace("nodes: 2", "nodes: 4") + "args: {train-iters: 100}\n"
    plan = planned(job, of)
    found = plan_json(plan)
    assert why in found["unknown"]["time"]
    assert (found["time"]["step_s"], found["time"]["wall_s"], found["gpu_hours"]) == (None, None, None)
    assert "unknown: earlier-1 took 30 s per step, but " in "\n".join(plan_lines(plan))
    with pytest.raises(UsageError, match=r"earlier-1 cannot calibrate the layouts: .*" + why):
        job_layouts(checked(job), of)


def test_a_run_with_another_number_of_processes_calibrates_the_layouts() -> None:
    of = earlier(MEGATRON, 16)
    job = checked(MEGATRON.replace("nodes: 2", "nodes: 4"))
    plain, seconds = job_layouts(job, None), job_layouts(job, of)
    assert "does not predict seconds" in "\n".join(layout_lines(plain))
    assert "SECONDS of a step, calibrated by earlier-1" in "\n".join(layout_lines(seconds))
    before = planned(MEGATRON).step_s
    assert before is not None
    first = seconds.found.layouts[0].step_s
    assert first == pytest.approx(30 * plain.found.layouts[0].step_s / before)


def test_uneven_stages_from_the_list_to_megatrons_flags() -> None:
    sizes = "{layers: 61, hidden: 512, ffn: 2048, heads: 8, vocab: 32000, sequence: 1024}"
    job = f"nodes: 2\nmodel: {sizes}\nstrategy: megatron\nprecision: bf16\n"
    (found,) = findings(f"{job}parallel: {{tp: 1, pp: 16, global_batch: 64}}\n")
    assert "HL645 61 layers are not divisible by PP = 16" in found
    done = hpc_launch_text(["plan", "job.yaml", "--site", "here.yaml", "--search", "--json"], env=os.environ)
    listed = json.loads(done.stdout)["layouts"]
    row = next(at for at, one in enumerate(listed, 1) if one["pp"] == 16)
    assert listed[row - 1]["stage_layers"] == [3, *[4] * 14, 2]
    keys = listed[row - 1]["job_file"]
    assert keys["parallel"].items() >= {"first_stage_layers": 3, "last_stage_layers": 2}.items()
    job += json.dumps(keys)[1:-1] + "\n"
    assert findings(job) == []
    plan = planned(job)
    assert "layers of the pipeline stages: 3+14×4+2" in "\n".join(plan_lines(plan))
    done = hpc_launch_text(["render", "job.yaml", "--site", "here.yaml"], env=os.environ)
    assert "--decoder-first-pipeline-num-layers" in done.stdout


def test_flags_that_the_checks_would_not_see_are_refused() -> None:
    job = "nodes: 2\nstrategy: megatron\nparallel: {pp: 2, global_batch: 16}\nargs: {num-layers: 31, %s}\n"
    refused = findings(job % "account-for-loss-in-pipeline-split: true")
    assert any("HL674 `--account-for-loss-in-pipeline-split` is not known" in one for one in refused)
    assert findings(job % "pipeline-model-parallel-layout: 'Et*15|t*16L'") == []


def test_a_layout_that_is_not_valid_leaves_the_rest_unknown() -> None:
    plan = planned("model: llama3-8b\nstrategy: megatron\nparallel: {tp: 3, global_batch: 8}\n")
    text = "\n".join(plan_lines(plan))
    assert "8 processes are not divisible by TP × PP × CP = 3" in text
    assert "model       llama3-8b: 8.03 B parameters" in text
    assert "memory      unknown: the layout is not valid" in text
    found = plan_json(plan)
    assert found["memory_gib"] is None
    assert found["unknown"]["memory"] == "the layout is not valid"
    assert found["gradient_accumulation_steps"] is None


def test_no_time_is_estimated_for_processes_that_share_a_gpu() -> None:
    job = "model: llama3-8b\nstrategy: {name: zero3, micro_batch: 1}\nargs: {steps: 10}\n"
    assert plan_json(planned(job))["time"]["source"] == "estimated"
    assert plan_json(planned(job + "processes_per_node: 16\n"))["time"] is None


def test_batch_sizes_among_the_arguments_count_too() -> None:
    more = "strategy: {name: fsdp}\nargs: {per_device_train_batch_size: 2, gradient_accumulation_steps: 4}\n"
    found = plan_json(planned(f"{more}model: llama3-8b\n"))
    assert (found["micro_batch_size"], found["gradient_accumulation_steps"], found["global_batch_size"]) == (2, 4, 64)


def test_the_plan_on_the_command_line(folder: Path) -> None:
    Path("job.yaml").write_text(GOOD + "model: llama3-70b\nstrategy: {name: zero3, micro_batch: 1}\n")
    done = hpc_launch_text(["plan", "job.yaml", "--site", "here.yaml"], env=os.environ)
    assert done.returncode == 3, done.stderr
    assert "memory      " in done.stdout
    assert "HL685" in done.stderr
    done = hpc_launch_text(["plan", "job.yaml", "--site", "here.yaml", "--set", "nodes=8", "--json"], env=os.environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dp"] == 64


def test_a_pipe_does_not_submit_an_expensive_job(folder: Path) -> None:
    Path("job.yaml").write_text("name: x\nscript: train.py\nconfirm_gpu_hours: 0.01\ntime: 5\n")
    done = hpc_launch_text(["submit", "job.yaml", "--site", "here.yaml"], env=os.environ)
    assert done.returncode == 3
    assert "job.yaml:3:20: HL687" in done.stderr
    assert "add `--yes`" in done.stderr


def test_the_layouts_that_fit_and_the_recommended_one_for_the_job_file() -> None:
    job = f"{GOOD}nodes: 4\nmodel: llama3-70b\nstrategy: megatron\nprecision: bf16\n"
    Path("job.yaml").write_text(f"{job}parallel: {{tp: 8, pp: 8, global_batch: 256}}\n")
    compare = ["plan", "job.yaml", "--site", "here.yaml", "--search"]
    done = hpc_launch_text([*compare, "--json"], env=os.environ)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    times = [one["relative_time"] for one in found["layouts"]]
    assert times == sorted(times)
    assert times[0] == 1
    assert all(one["tp"] * one["pp"] * one["cp"] * one["dp"] == 32 for one in found["layouts"])
    assert {one["step_s"] for one in found["layouts"]} == {None}
    shown = hpc_launch_text(compare, env=os.environ).stdout
    assert "does not predict seconds" in shown
    best = found["layouts"][found["recommended"] - 1]
    block = shown.partition("in the job file, * is:\n")[2].replace("  parallel:", "parallel:")
    again = plan_json(
        planned(job.removeprefix(GOOD) + block + f"args: {{recompute-granularity: {best['recompute']}}}\n")
    )
    assert {key: again[key] for key in ("tp", "pp", "cp", "ep", "dp")} == {
        key: best[key] for key in ("tp", "pp", "cp", "ep", "dp")
    }
    assert again["findings"] == []


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ("", ["--search"], "the model of the job is unknown"),
        ("model: llama3-8b\n", ["--search"], "the job does not name its strategy"),
        ("model: llama3-8b\nstrategy: ddp\ngpus_per_node: 0\n", ["--search"], "GPU"),
        ("", ["--set", "nodes=99999999999"], "at most 100000"),
        ("nodes: 2000\nprocesses_per_node: 1000\n", [], "2,000,000 processes are too many to plan"),
        ("", ["--pace-of", "nothing"], "no run is called"),
    ],
)
def test_what_cannot_be_planned_is_said(more: str, options: list[str], words: str) -> None:
    Path("job.yaml").write_text(GOOD + more)
    done = hpc_launch_text(["plan", "job.yaml", "--site", "here.yaml", *options], env=os.environ)
    assert done.returncode in {2, 3}
    assert words in done.stderr
    assert "Traceback" not in done.stderr
