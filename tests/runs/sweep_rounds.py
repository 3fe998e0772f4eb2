"""Rounds of faults while a sweep is submitted: `play(SEED, FOLDER)` says how often each point trained."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from msgspec import structs

from hpc_launch.base.errors import UserError
from hpc_launch.base.files import create_once
from hpc_launch.prepare import submit_sweep
from hpc_launch.prepare.prepare_sweep import PreparedSweep, prepare_sweep
from hpc_launch.prepare.submit_sweep import create_sweep, submit_points
from hpc_launch.runs.groups import job_arrays
from hpc_launch.runs.groups.array_tasks import attempt_of, begin_attempt, tasks_of
from hpc_launch.runs.groups.group_folder import SweepFolder
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.schedulers.scheduler import ArrayRoom, JobRecord, Submission
from tests.runs.fake import FakeScheduler
from tests.slurm.user import PROFILES

POINTS = 7
ARRAY = 3
FAULTS = ("", "refuse", "lost", "deaf", "down")
JOB = """
name: rates
site: testcluster
launcher: none
command: [sleep, "1"]
time: 5
"""


@dataclass
class ArrayScheduler(FakeScheduler):
    """A scheduler with job arrays, whose submissions fail as planned: the n-th by the n-th word."""

    plan: list[str] = field(default_factory=list)

    def submit(self, submission: Submission) -> str:
        self.fault = self.plan.pop(0) if self.plan else ""
        try:
            return super().submit(submission)
        finally:
            self.fault = ""

    def take(self, submission: Submission) -> str:
        job_id = super().take(submission)
        self.set(job_id, array=submission.array)
        return job_id

    def array_room(self, account: str | None, partition: str | None, qos: str | None) -> ArrayRoom | None:
        return ArrayRoom(ARRAY, 0)

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        ids = list(job_ids)
        found = super().query({one.partition("_")[0] for one in ids}, fresh=fresh)
        return {one: structs.replace(job, job_id=one) for one in ids if (job := found.get(one.partition("_")[0]))}

    def record(self, job_id: str) -> JobRecord:
        job = {key: value for key, value in self.job(job_id).items() if key in ("name", "state", "submitted", "ended")}
        return JobRecord(job_id=job_id, source=self.source, as_of=self.clock(), **job)

    def begun(self, attempt: AttemptFolder, job_id: str) -> None:
        """Called when a task has begun to train."""

    def run_tasks(self, chosen: Callable[[], bool]) -> list[str]:
        """Start tasks as slurm_templates/array.sh.j2 does; the points that train."""
        trained = []
        for job_id in self.jobs():
            job = self.job(job_id)
            if not job.get("array"):
                continue
            array, done = AttemptFolder(Path(job["folder"])), set(job.get("done", []))
            sweep, lines = SweepFolder(RunFolder(array.path.parents[1])), {one.task: one for one in tasks_of(array)}
            for task in sorted(tasks_in(job["array"]) - done):
                if not chosen():
                    continue
                done.add(task)
                if array.claim.exists() or not begin_attempt(sweep, array, lines[task]):
                    continue
                attempt = attempt_of(sweep, lines[task])
                if create_once(attempt.claim, f"{job_id}_{task}\n"):
                    self.begun(attempt, f"{job_id}_{task}")
                    trained.append(attempt.run.name.rpartition("/")[2])
            self.set(job_id, done=sorted(done))
        return trained


def begin_sweep(folder: Path, points: int, sites: Path = PROFILES) -> SweepFolder:
    """Write a sweep with so many points."""
    os.environ["HPC_LAUNCH_SITE_PATH"] = str(sites)
    os.environ["HPC_LAUNCH_HOME"] = str(folder / "runs")
    (folder / "job.yaml").write_text(f"{JOB}sweep: {{grid: {{args.lr: {list(range(points))}}}}}\n")
    return create_sweep(prepare_sweep(folder / "job.yaml"), ())


def play(seed: int, folder: Path) -> tuple[dict[str, int], int, list[str]]:
    """One round; how often each point trained, how many arrays there are, and what happened."""
    chance = random.Random(seed)
    scheduler = ArrayScheduler(folder / "scheduler")
    sweep, trained, story = begin_sweep(folder, POINTS), Counter[str](), list[str]()
    later = 0.0
    first: PreparedSweep | None = prepare_sweep(folder / "job.yaml")
    for _ in range(30):
        drivers = []
        for _ in range(chance.choice((1, 1, 2))):
            kill, faults = chance.choice((0, 0, 1, 2, 4, 7, 11, 15)), [chance.choice(FAULTS) for _ in range(2)]
            faults = faults if chance.random() < 0.5 else []
            locks = seed % 2 == 0
            story.append(json.dumps([kill, faults, later, locks]))
            drivers.append(_driver(sweep, scheduler, first, kill, faults, later, locks=locks))
        first = None
        trained.update(scheduler.run_tasks(lambda: chance.random() < 0.3))
        for child in drivers:
            os.waitpid(child, 0)
        trained.update(scheduler.run_tasks(lambda: chance.random() < 0.3))
        if sweep.submitted.exists():
            break
        later += chance.choice((0, 25, 700))
    trained.update(scheduler.run_tasks(lambda: True))
    if not sweep.submitted.exists():
        story.append("never submitted completely")
    return dict(trained), len(scheduler.jobs()), story


def _driver(  # noqa: PLR0917 - what goes wrong
    sweep: SweepFolder,
    scheduler: ArrayScheduler,
    prepared: PreparedSweep | None,
    kill: int,
    faults: list[str],
    later: float,
    *,
    locks: bool,
) -> int:
    """A process that submits what is left, and is killed at the `kill`-th step of the protocol."""

    def submit() -> None:
        if not locks:
            vars(submit_sweep)["one_submitter"] = lambda _: nullcontext(True)
        scheduler.plan = faults
        fresh = SweepFolder(sweep.run)
        submit_points(fresh, scheduler, prepared=prepared, lookup_s=0.0, clock=lambda: time.time() + later)

    return killed_driver(kill, submit, job_arrays)


def killed_driver(kill: int, act: Callable[[], object], *modules: ModuleType) -> int:
    """A process that does something, and is killed at the `kill`-th step of the protocol, which these modules have."""
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
        for module in modules:
            vars(module)["checkpoint"] = checkpoint  # in this process only
        act()
    except UserError:
        os._exit(4)
    finally:
        os._exit(0)


def tasks_in(spec: str) -> set[int]:
    """The tasks of `sbatch --array`."""
    ranges = (part.partition("-") for part in spec.partition("%")[0].split(","))
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}
