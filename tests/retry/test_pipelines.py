"""Pipelines: no stage twice, none forgotten, whatever happens to the drivers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_launch.base.errors import NotNow
from hpc_launch.prepare.prepare_pipeline import create_pipeline, prepare_pipeline
from hpc_launch.retry.drive_groups import advance_pipeline
from hpc_launch.runs.groups.group_folder import PipelineFolder
from hpc_launch.runs.groups.pipeline_status import PipelineStatus, pipeline_status
from hpc_launch.runs.records.submission import NEVER_SUBMITTED
from hpc_launch.runs.run_index import Index
from hpc_launch.schedulers.scheduler import Submission
from tests.marks import prove
from tests.retry.pipeline_rounds import EXPECTED, look_at, play
from tests.runs.sweep_rounds import ArrayScheduler
from tests.slurm.user import PROFILES

pytestmark = pytest.mark.usefixtures("kept_environment")


@pytest.mark.parametrize("seed", [1, *map(prove, range(100, 150))])
def test_each_stage_runs_once_whatever_happens_to_its_drivers(seed: int, tmp_path: Path) -> None:
    trained, story = play(seed, tmp_path)
    assert trained == EXPECTED, story


class Full(ArrayScheduler):
    """A cluster whose limit is reached."""

    full = True

    def submit(self, submission: Submission) -> str:
        if self.full:
            raise NotNow("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")
        return super().submit(submission)


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineFolder:
    """`b` runs if `a` fails."""
    os.environ["HPC_LAUNCH_SITE_PATH"] = str(PROFILES)
    os.environ["HPC_LAUNCH_HOME"] = str(tmp_path / "runs")
    job = "name: nightly\nsite: testcluster\nlauncher: none\ncommand: ['true']\njobs:\n  a: {}\n"
    (tmp_path / "job.yaml").write_text(f"{job}  b: {{after: {{a: not-ok}}}}\n")
    return create_pipeline(prepare_pipeline(tmp_path / "job.yaml"), ())


def test_a_state_that_another_driver_has_overtaken_is_not_the_end_of_a_stage(
    pipeline: PipelineFolder, tmp_path: Path
) -> None:
    scheduler, run = Full(tmp_path / "scheduler"), pipeline.stage_run("a")
    found = look_at(pipeline, scheduler, 0.0)
    advance_pipeline(pipeline, found, lambda _: scheduler, Index(tmp_path / "state", os.environ))
    run.attempt(1).claim.write_text(f"void {NEVER_SUBMITTED}\n")  # as of a driver that was killed
    found = look_at(pipeline, scheduler, 0.0)
    assert [(one.stage.name, one.attempt) for one in pipeline_status(pipeline, found).due] == [("a", 1)]
    run.attempt(2).path.mkdir()
    assert [one.state for one in pipeline_status(pipeline, found).stages] == ["SUBMITTING", "PENDING"]
    assert pipeline_status(pipeline, found).due == ()


def test_a_stage_that_a_limit_refused_waits_and_is_no_failure(pipeline: PipelineFolder, tmp_path: Path) -> None:
    scheduler = Full(tmp_path / "scheduler")
    index = Index(tmp_path / "state", os.environ)

    def look() -> PipelineStatus:
        return pipeline_status(pipeline, look_at(pipeline, scheduler, 0.0))

    def drive() -> list[str]:
        found = look_at(pipeline, scheduler, 0.0)
        return [one.kind for one in advance_pipeline(pipeline, found, lambda _: scheduler, index)]

    assert drive() == ["waiting"]
    assert [one.state for one in look().stages] == ["PENDING", "PENDING"]
    assert drive() == []
    scheduler.full = False
    os.utime(pipeline.stage_run("a").attempt(1).claim, (0, 0))
    assert drive() == ["submitted"]
    assert [one.state for one in look().stages] == ["PENDING", "PENDING"]
    assert [attempt.number for attempt in pipeline.stage_run("a").attempts()] == [1, 2]
