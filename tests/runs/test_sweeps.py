"""Sweeps: arrays as the limits allow, and each point trains exactly once whatever happens to its submission."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from hpc_launch.base.files import write_json
from hpc_launch.prepare.submit_sweep import submit_points
from hpc_launch.retry import drive_groups
from hpc_launch.retry.drive_groups import submit_next_points
from hpc_launch.runs.groups.array_tasks import begun, write_points
from hpc_launch.runs.groups.group_folder import SweepFolder
from hpc_launch.runs.groups.job_arrays import array_spec, chunks, settle_arrays
from hpc_launch.runs.groups.sweep_status import sweep_status
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import ArrayRoom
from hpc_launch.script.parts import RUNTIME, runtime
from tests.marks import prove
from tests.runs.sweep_rounds import POINTS, ArrayScheduler, begin_sweep, play, tasks_in
from tests.slurm.user import PROFILES

ROOM = 20

pytestmark = pytest.mark.usefixtures("kept_environment")


def test_arrays_are_as_few_as_the_limit_allows() -> None:
    made = chunks(range(1000), 250)
    assert [len(one) for one in made] == [250] * 4
    assert [array_spec(one, None) for one in made] == ["0-249"] * 4
    assert made[0][7] == 7
    assert made[1][7] == 257
    (few,) = chunks([0, 2, 3], 1001)
    assert array_spec(few, 2) == "0,2-3%2"


@pytest.mark.parametrize("seed", [1, 6, 9, *map(prove, range(100, 150))])
def test_each_point_trains_once_whatever_happens_to_its_submission(seed: int, tmp_path: Path) -> None:
    trained, _, story = play(seed, tmp_path)
    assert trained == {str(point): 1 for point in range(POINTS)}, story


@dataclass
class FullQueue(ArrayScheduler):
    """A queue with room for ROOM tasks."""

    looks: int = 0
    ended: int = 0

    def array_room(self, account: str | None, partition: str | None, qos: str | None) -> ArrayRoom | None:
        self.looks += 1
        submitted = sum(len(tasks_in(self.job(job_id)["array"])) for job_id in self.jobs())
        return ArrayRoom(1001, submitted - self.ended, ROOM - submitted + self.ended)

    def end(self, sweep: SweepFolder, number: int) -> None:  # type: ignore[override]
        """The script of a point ends: its job leaves the queue later."""
        write_json(sweep.point(number).attempt(1).end, {"exit_code": 0})


def test_the_end_of_some_points_submits_further_ones_in_one_array(tmp_path: Path) -> None:
    scheduler = FullQueue(tmp_path / "scheduler")
    sweep = begin_sweep(tmp_path, 2 * ROOM)
    assert submit_points(sweep, scheduler).left == ROOM
    scheduler.run_tasks(lambda: True)
    for number in range(ROOM):
        scheduler.end(sweep, number)
        submit_next_points(sweep.point(number), scheduler)  # from within its job
        scheduler.ended += 1
    assert len(scheduler.jobs()) <= ROOM / 2 + 1
    left = submit_points(sweep, scheduler).left  # by whoever looks next: the last jobs had no later end
    assert left == 0
    assert sorted(scheduler.run_tasks(lambda: True)) == sorted(str(one) for one in range(ROOM, 2 * ROOM))


def test_of_points_that_end_together_one_submits(tmp_path: Path) -> None:
    scheduler = FullQueue(tmp_path / "scheduler")
    sweep = begin_sweep(tmp_path, 2 * ROOM)
    submit_points(sweep, scheduler)
    scheduler.run_tasks(lambda: True)
    children = []
    scheduler.ended = ROOM
    for number in range(ROOM):
        scheduler.end(sweep, number)
        child = os.fork()
        if not child:
            submit_next_points(sweep.point(number), scheduler)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert len(scheduler.jobs()) == 2
    assert sorted(scheduler.run_tasks(lambda: True)) == sorted(str(one) for one in range(ROOM, 2 * ROOM))


def test_each_array_has_a_sentinel_if_the_site_has_a_queue_for_them(tmp_path: Path) -> None:
    text = (PROFILES / "testcluster.yaml").read_text()
    (tmp_path / "sites").mkdir()
    watched = text.replace("scheduler: slurm", "scheduler: {type: slurm, sentinel: short}")
    (tmp_path / "sites" / "testcluster.yaml").write_text(watched)
    scheduler = ArrayScheduler(tmp_path / "scheduler")
    sweep = begin_sweep(tmp_path, 5, tmp_path / "sites")  # in arrays of three
    submit_points(sweep, scheduler)
    jobs = {job_id: scheduler.job(job_id) for job_id in scheduler.jobs()}
    arrays = [job_id for job_id, job in jobs.items() if job["array"]]
    assert len(arrays) == 2
    sentinels = [job["options"] for job in jobs.values() if job["name"].endswith(".sentinel")]
    assert all(f"--dependency=afterany:{one}" in options for one, options in zip(arrays, sentinels, strict=True))


@pytest.mark.parametrize("killed", [False, True])
def test_the_jobs_of_points_name_their_cluster_though_the_driver_was_killed_after_sbatch(
    tmp_path: Path, *, killed: bool
) -> None:
    """Without it, a job that the controller forgot could not be told from one of another cluster."""
    scheduler = FullQueue(tmp_path / "scheduler")
    sweep = begin_sweep(tmp_path, 3)
    submit_points(sweep, scheduler)
    if killed:
        (array,) = sweep.arrays()
        array.job.unlink()
        settle_arrays(sweep, scheduler)
    jobs = [Reader().read(attempt).job for run in begun(sweep) for attempt in run.attempts()]
    assert [(job.job_id, job.cluster) for job in jobs if job is not None] == [
        (f"{scheduler.jobs()[0]}_{task}", "here") for task in range(3)
    ]


def test_points_of_a_sweep_of_an_older_release_get_the_programs_of_this_one(tmp_path: Path) -> None:
    """Their scripts check the digest of runtime.sh."""
    sweep = begin_sweep(tmp_path, 3)
    (sweep.run.hooks / RUNTIME).write_text("of an older release")
    submit_points(sweep, FullQueue(tmp_path / "scheduler"))
    assert (sweep.run.hooks / RUNTIME).read_text() == runtime()


def test_the_last_point_that_finds_no_room_waits_until_others_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others found it busy and left, so that nobody else would look."""
    monkeypatch.setattr(drive_groups, "POLL_S", 0.01)

    @dataclass
    class EndsMeanwhile(FullQueue):
        def array_room(self, account: str | None, partition: str | None, qos: str | None) -> ArrayRoom | None:
            room = super().array_room(account, partition, qos)
            if self.looks == 2:
                self.end(sweep, 1)
                self.ended = 2
                return ArrayRoom(1001, 2, 0)
            return room

    scheduler = EndsMeanwhile(tmp_path / "scheduler")
    sweep = begin_sweep(tmp_path, ROOM + 2)
    assert submit_points(sweep, scheduler).left == 2
    scheduler.run_tasks(lambda: True)
    for number in range(ROOM):
        if number != 1:
            scheduler.end(sweep, number)
    submit_next_points(sweep.point(0), scheduler)
    assert len(scheduler.jobs()) == 2


def test_a_reader_who_may_not_write_sees_which_points_are_in_the_queue(tmp_path: Path) -> None:
    sweep = begin_sweep(tmp_path, ROOM + 2)
    submit_points(sweep, FullQueue(tmp_path / "scheduler"))
    assert sweep_status(sweep, {}).counts == {"SUBMITTING": 2, "PENDING": ROOM}


def test_points_that_were_cancelled_together_cost_one_query_and_wait_for_no_disk(tmp_path: Path) -> None:
    scheduler, synced = FullQueue(tmp_path / "scheduler"), 0
    sweep = begin_sweep(tmp_path, ROOM)
    submit_points(sweep, scheduler)
    scheduler.cancel("1")
    tracker = RunTracker(begun(sweep), lambda _: scheduler)

    def count(_: FrameType, event: str, function: object) -> None:
        nonlocal synced
        synced += event == "c_call" and function is os.fsync

    sys.setprofile(count)
    tracker.poll()
    sys.setprofile(None)

    assert synced == 0
    assert all((one.state, one.settled) == ("CANCELLED", True) for one in tracker.poll().values())
    assert len(scheduler.asked("query")) == 1


def test_a_task_writes_the_same_files_as_who_looks_earlier(tmp_path: Path) -> None:
    scheduler = FullQueue(tmp_path / "scheduler")
    sweep = begin_sweep(tmp_path, 3)
    submit_points(sweep, scheduler)
    (array,) = sweep.arrays()
    name = scheduler.job("1")["name"]
    own = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NAME": name, "SLURM_JOB_ID": "2", "PATH": os.environ["PATH"]}
    subprocess.run(["bash", array.script, array.path], env=own, check=False, timeout=60)
    written = _files(sweep.point(1))
    assert 'args.lr=1"' in written["attempts/001/intent.json"]
    shutil.rmtree(sweep.point(1).path)
    write_points(sweep)
    assert _files(sweep.point(1)).items() <= written.items()  # the script has gone on


def test_a_sweep_that_others_can_change_is_only_read_whatever_they_wrote(tmp_path: Path) -> None:
    sweep = begin_sweep(tmp_path, 3)
    submit_points(sweep, FullQueue(tmp_path / "scheduler"))
    (array,) = sweep.arrays()
    sweep.run.path.chmod(0o777)
    tasks = (array.path / "tasks").read_bytes()
    (array.path / "tasks").write_bytes(
        tasks + b"x 1 001 0\n-1 1 001 0\n7 7\n7 7 001 0 mark\n\xff\n" + b"9" * 5000 + b" 1 001 0\n"
    )
    assert sweep_status(sweep, {}).counts == {"PENDING": 3}
    assert begun(sweep) == []


def _files(run: RunFolder) -> dict[str, str]:
    """The files and links of a point, with their modes."""
    found = {}
    for path in sorted(run.path.rglob("*")):
        if not path.is_dir() or path.is_symlink():
            what = os.readlink(path) if path.is_symlink() else path.read_text()
            found[str(path.relative_to(run.path))] = f"{path.lstat().st_mode:o} {what}"
    return found
