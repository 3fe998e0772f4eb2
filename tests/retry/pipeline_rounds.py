"""Rounds of faults while a pipeline runs: `play(SEED, FOLDER)` says how often each of its runs trained."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

from hpc_launch.base.files import write_json
from hpc_launch.prepare import submit_sweep
from hpc_launch.prepare.prepare_pipeline import create_pipeline, prepare_pipeline
from hpc_launch.retry.drive_groups import advance_pipeline
from hpc_launch.runs.groups import job_arrays
from hpc_launch.runs.groups.group_folder import PipelineFolder, SweepFolder
from hpc_launch.runs.groups.pipeline_status import pipeline_status
from hpc_launch.runs.groups.sweep_status import SweepStatus, sweep_states
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.submitting import submit_attempt
from tests.runs.sweep_rounds import ArrayScheduler, killed_driver
from tests.slurm.user import PROFILES

FAULTS = ("", "lost", "deaf", "down")
STEPS = (10, 20, 30)
POINTS = 3
JOB = r"""
name: nightly
site: testcluster
launcher: none
command: [sleep, "1"]
time: 5
jobs:
  prepare: {}
  tune: {sweep: {grid: {args: [[1], [2], [3]]}}}
  train: {after: prepare, checkpoint: {dir: "${run.dir}/steps", pattern: '(\d+)'}}
  evaluate: {after: train, args: ["${train.checkpoint}"]}
  watch: {on: {checkpoint: train, every: 2}, args: ["${train.checkpoint}"]}
  rescue: {after: {evaluate: not-ok}}
  report: {after: {evaluate: ok, watch: any, tune: ok}}
"""
EXPECTED = dict.fromkeys(
    ["prepare", "tune/0", "tune/1", "tune/2", "train", "evaluate", "watch-20", "watch-30", "report"], 1
)


class FaultyScheduler(ArrayScheduler):
    """A scheduler with job arrays, whose submissions fail as planned: the n-th by the n-th word."""

    def run_jobs(self, chance: random.Random) -> list[str]:
        """Let some of the jobs begin, save a checkpoint or end. The runs that began to train."""
        began = []
        for job_id in self.jobs():
            job = self.job(job_id)
            if job.get("array") or job["name"].endswith(".sentinel"):
                continue
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
        began += [f"tune/{point}" for point in self.run_tasks(lambda: chance.random() < 0.5)]
        for job_id in self.jobs():
            job = self.job(job_id)
            if job.get("array") and len(job.get("done", [])) == POINTS:
                self.set(job_id, state="COMPLETED")
        return began

    def begun(self, attempt: AttemptFolder, job_id: str) -> None:
        """A task ends at once."""
        record = {"job_id": job_id, "restart": 0, "exit_code": 0, "signal": "", "ended": self.clock() - 60}
        write_json(attempt.end, {**record, "phase": "train", "warned": False})


def play(seed: int, folder: Path) -> tuple[dict[str, int], list[str]]:
    """One round: how often each run trained, and what happened."""
    chance = random.Random(seed)
    os.environ["HPC_LAUNCH_SITE_PATH"] = str(PROFILES)
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
        status = pipeline_status(pipeline, look_at(pipeline, scheduler, later))
        states = str([(one.stage.name, one.state, one.reason) for one in status.stages])
        if status.as_run().final and not status.as_run().undecided:
            break
        later += chance.choice((0, 25, 700))
    story.append(states)
    return dict(trained), story


def look_at(pipeline: PipelineFolder, scheduler: ArrayScheduler, later: float) -> dict[str, RunStatus | SweepStatus]:
    """The states of all runs by name, `later` seconds from now."""

    def poll(runs: list[RunFolder]) -> dict[str, RunStatus]:
        return RunTracker(runs, lambda _: scheduler, clock=lambda: time.time() + later).poll(fresh=True)

    return sweep_states(pipeline.stage_runs(), poll)


def _driver(pipeline: PipelineFolder, scheduler: FaultyScheduler, kill: int, fault: str, later: float) -> int:
    """A process that does what is due, and is killed at the `kill`-th step of the protocol."""

    def clock() -> float:
        return time.time() + later

    def advance() -> None:
        for function, more in ((submit_attempt.submit_next, {}), (submit_sweep.submit_points, {"clock": clock})):
            function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "lookup_s": 0.0, **more}
        scheduler.plan = [fault]
        fresh = PipelineFolder(pipeline.run)
        index = Index(pipeline.run.path.parents[1] / "state", os.environ)
        tune = SweepFolder(fresh.stage_run("tune"))
        if tune.run.exists:
            submit_sweep.advance(tune, lambda _: scheduler)
        advance_pipeline(fresh, look_at(fresh, scheduler, later), lambda _: scheduler, index)

    return killed_driver(kill, advance, sys.modules[create_pipeline.__module__], submit_attempt, job_arrays)
