"""What is wrong with the jobs of a pipeline or the points of a sweep is found before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.job.job_file import refuse_made_up
from hpc_launch.prepare.prepare import validate_job
from hpc_launch.prepare.prepare_sweep import prepare_sweep
from tests.slurm.user import PROFILES

SHARED = "name: nightly\nlauncher: none\ncommand: ['true']\njobs:\n"


def messages(folder: Path, jobs: str, *sets: str, site: str = "local") -> list[str]:
    (folder / "job.yaml").write_text(SHARED + jobs)
    return [f"{one.place}: {one.message}" for one in validate_job(folder / "job.yaml", site=site, sets=sets)]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("  a: {sweep: {random: {count: 1000000000, values: {args.lr: {low: 1, high: 2}}}}}", "1,000,000,000 points"),
        ("  a: {nodes: many}", "stage a: `nodes` must be"),
        ("  a: {script: gone.py, command: null}", "stage a: "),
        ("  a: {}\n  b: {on: {checkpoint: a}}", "`on` of stage `b` needs checkpoints"),
        ('  a: {}\n  b: {after: a, args: ["${a.step}"]}', "`${a.step}` in stage `b` needs checkpoints"),
        ('  a: {args: ["${b.checkpint}"]}', "stage a: unknown variable `${b.checkpint}`"),
    ],
)
def test_each_stage_is_checked_as_a_job(jobs: str, message: str, tmp_path: Path) -> None:
    (found,) = messages(tmp_path, jobs)
    assert message in found
    assert f"{tmp_path}/job.yaml:5:" in found or "job.yaml:6:" in found


def test_a_set_option_names_a_stage_or_is_for_all(tmp_path: Path) -> None:
    jobs = "  a: {}\n  b: {after: a, sweep: {grid: {args.lr: [1, 2]}}}"
    assert messages(tmp_path, jobs, "time=5m", "jobs.b.time=6m", "jobs.b.sweep.grid={args.lr: [1]}") == []
    for wrong in ("jobs.c.time=5", "sweep=null", "name=x"):
        (found,) = messages(tmp_path, jobs, wrong)
        assert wrong in found


def test_hosts_without_a_queue_are_refused(tmp_path: Path) -> None:
    found = messages(tmp_path, "  a: {}", site=str(Path(__file__).parents[1] / "golden/sites/hosts.yaml"))
    assert any("has no queue for the stages of a pipeline" in one for one in found), found


def test_a_stage_alone_needs_no_values_of_others(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(SHARED + '  a: {}\n  b: {after: a, args: ["${a.folder}"]}')
    refuse_made_up(tmp_path / "job.yaml" / "a", "submit")
    with pytest.raises(UsageError, match=r"needs `\$\{a.folder\}` of another stage"):
        refuse_made_up(tmp_path / "job.yaml" / "b", "submit")


def test_the_example_has_no_errors() -> None:
    example = Path(__file__).parents[2] / "examples" / "tiny-gpt" / "pipeline.yaml"
    assert validate_job(example, site="local") == []


def refusals(folder: Path, sweep: str) -> list[str]:
    job = folder / "job.yaml"
    (folder / "train.py").touch()
    job.write_text(f"name: x\nscript: train.py\nsweep: {sweep}\n")
    with pytest.raises(Refused) as refused:
        prepare_sweep(job, site="local", sets=["env.X=1"])
    return [str(finding).replace(str(folder), "") for finding in refused.value.findings]


def test_an_invalid_value_is_found_in_the_job_file(tmp_path: Path) -> None:
    first, _second = refusals(tmp_path, "{grid: {processes_per_node: [1, 0, -1]}}")
    assert first.startswith("/job.yaml:3:8: HL013 point 1 (processes_per_node=0): ")


def test_a_secret_is_refused_once_and_not_shown(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, "{grid: {env.HF_TOKEN: [hf_one, hf_two]}}")
    assert "HL211 point 0 (HF_TOKEN=…)" in found
    assert "hf_" not in found


GRIDS = [
    ("args.lr: [1e-3, 2, -0.5]", True),
    ("args.lr: [1, 2, 3]}, zip: {args.seed: [1, 2], args.steps: [3, 4]", True),
    ("args.lr: [1, 2, fast]", False),
    ("args.lr: [1, 2]", False),  # too few to compare
    ("env.LR: [1, 2, 3]", False),
    ("args.micro_batch_size: [1, 2, 3]", False),  # the next attempt may change it
    ("nodes: [1, 2, 3]", False),
    ("args: [[1], [2], [3]]", False),
]


@pytest.mark.parametrize(("grid", "shared"), GRIDS)
def test_points_that_differ_in_numbers_share_a_plan(
    grid: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(PROFILES))
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\nlauncher: none\ncommand: [sh]\ntime: 5\nsweep: {{grid: {{{grid}}}}}\n")
    sweep = prepare_sweep(job, site="testcluster")
    assert (len({id(one.job) for one in sweep.jobs.values()}) == 1) is shared
