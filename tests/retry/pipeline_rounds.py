"""Rounds of faults while a pipeline runs: `play(SEED, FOLDER)` says how often each of its runs trained."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hpc_launch.base.errors import UserError
from hpc_launch.drive import submit_stage
from hpc_launch.drive.prepare_pipeline import create_pipeline, prepare_pipeline
from hpc_launch.retry.advance_pipeline import advance_pipeline
from hpc_launch.retry.drivers import Drivers
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.pipelines.pipeline_folder import PipelineFolder
from hpc_launch.run.pipelines.pipeline_status import PipelineStatus, pipeline_status
from hpc_launch.run.run_index import Index
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.run.submitting import submit_attempt
from hpc_launch.schedulers.scheduler import Submission
from tests.run.fake import FakeScheduler

FAULTS = ("", "lost", "deaf", "down")
STEPS = (10, 20, 30)
JOB = r"""
name: nightly
site: testcluster
launcher: none
command: [sleep, "1"]
time: 5
jobs:
  prepare: {}
  train: {after: prepare, checkpoint: {dir: "${run.dir}/steps", pattern: '(\d+)'}}
  evaluate: {after: train, args: ["${train.checkpoint}"]}
  watch: {on: {checkpoint: train, every: 2}, args: ["${train.checkpoint}"]}
  rescue: {after: {evaluate: not-ok}}
  report: {after: {evaluate: ok, watch: any}}
"""
EXPECTED = dict.fromkeys(["prepare", "train", "evaluate", "watch-20", "watch-30", "report"], 1)


@dataclass
class FaultyScheduler(FakeScheduler):
    """A scheduler whose submissions fail as planned: the n-th by the n-th word."""

    plan: list[str] = field(default_factory=list)

    def submit(self, submission: Submission) -> str:
        self.fault = self.plan.pop(0) if self.plan else ""
        try:
            return super().submit(submission)
        finally:
            self.fault = ""

    def run_jobs(self, chance: random.Random) -> list[str]:
        """Let some of the jobs begin, save a checkpoint or end. The runs that began to train."""
        began = []
        for job_id in self.jobs():
            job = self.job(job_id)
            run = RunFolder(Path(job["folder"]).parents[1])
            if job["state"] == "PENDING" and chance.random() < 0.5:
                if self.start(job_id):
                    began.append(run.name.partition("/")[2])
            elif job["state"] == "RUNNING" and chance.random() < 0.5:
                saved = len(list((run.path / "steps").glob("*")))
                if run.name.endswith("/train") and saved < len(STEPS):
                    (run.path / "steps").mkdir(exist_ok=True)
                    (run.path / "steps" / str(STEPS[saved])).write_text("x")
                else:
                    self.end(job_id)
                    self.set(job_id, state="COMPLETED", ended=self.clock(), exit_code=0)
        return began


def play(seed: int, folder: Path) -> tuple[dict[str, int], list[str]]:
    """One round: how often each run trained, and what happened."""
    chance = random.Random(seed)
    os.environ["HPC_LAUNCH_SITE_PATH"] = str(Path(__file__).parents[1] / "sites" / "profiles")
    os.environ["HPC_LAUNCH_HOME"] = str(folder / "runs")
    (folder / "job.yaml").write_text(JOB)
    scheduler = FaultyScheduler(folder / "scheduler")
    pipeline = create_pipeline(prepare_pipeline(folder / "job.yaml"), ())
    trained, story, later, states = Counter[str](), list[str](), 0.0, ""
    for at in range(120):
        drivers = []
        for _ in range(chance.choice((1, 1, 2))):
            kill, fault = chance.choice((0, 0, 1, 2, 3, 4, 5, 7, 9)), chance.choice(FAULTS)
            kill, fault = (0, "") if at > 60 or chance.random() < 0.3 else (kill, fault)
            drivers.append(_driver(pipeline, scheduler, kill, fault, later))
            story.append(json.dumps([kill, fault, later]))
        for child in drivers:
            os.waitpid(child, 0)
        trained.update(scheduler.run_jobs(chance))
        status = _look(pipeline, scheduler, later)[1]
        states = str([(one.stage.name, one.state, one.reason) for one in status.stages])
        if status.as_run().final and not status.as_run().undecided:
            break
        later += chance.choice((0, 25, 700))
    story.append(states)
    return dict(trained), story


def _look(pipeline: PipelineFolder, scheduler: FakeScheduler, later: float) -> tuple[RunTracker, PipelineStatus]:
    tracker = RunTracker(pipeline.stage_runs(), lambda _: scheduler, clock=lambda: time.time() + later)
    return tracker, pipeline_status(pipeline, tracker.poll(fresh=True))


def _driver(pipeline: PipelineFolder, scheduler: FaultyScheduler, kill: int, fault: str, later: float) -> int:
    """A process that does what is due, and is killed at the `kill`-th step of the protocol."""
    child = os.fork()
    if child:
        return child
    steps = 0

    def checkpoint(step: str) -> None:
        nonlocal steps
        del step
        steps += 1
        if steps == kill:
            os._exit(9)

    try:
        for module in (submit_stage, submit_attempt):
            vars(module)["checkpoint"] = checkpoint  # in this process only
        submit_next = submit_attempt.submit_next
        submit_next.__kwdefaults__ = {**(submit_next.__kwdefaults__ or {}), "lookup_s": 0.0}
        scheduler.plan = [fault]
        fresh = PipelineFolder(pipeline.run)
        index = Index(pipeline.run.path.parents[1] / "state", os.environ)
        tracker, _ = _look(fresh, scheduler, later)
        Drivers(tracker, index).drive_all(())
        advance_pipeline(fresh, dict(tracker.last), lambda _: scheduler, index)
    except UserError:
        os._exit(4)
    finally:
        os._exit(0)
