"""The run's next job waits while one trains: it takes over, once, or goes away."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.job.retry import Backoff, Retry
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.retry import recover_run, same_job
from hpc_launch.retry.drivers import Drivers
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.submitting import successor_job
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.reconcile import GRACE_S
from hpc_launch.runs.submitting.run_store import KILL_AFTER
from hpc_launch.runs.submitting.submit_attempt import submit_new, submit_next
from tests.retry.driver import drive, jobs
from tests.runs.fake import Clock, FakeScheduler
from tests.runs.samples import prepared, status_of

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2   # job.yaml:3\n#SBATCH --signal=B:USR1@60 # job.yaml:4\ntrue\n"


def wanted(runs: Path, more: dict[str, Any] | None = None, **plan: Any) -> Any:
    retry_plan = RetryPlan(**{"nodes": 2, "least_nodes": 2, "partition": "gpu", "successor": True, **plan})
    data = {"scheduler": "slurm", "recovery": retry_plan, "excluded": [], "nodes": 2, "spares": 0, **(more or {})}
    return prepared(runs, plan=data, secrets={}, script=SCRIPT)


def running(runs: Path, scheduler: FakeScheduler, **plan: Any) -> RunFolder:
    """A run that trains in job 1, with its successor, job 2."""
    run, _, job_id = submit_new(wanted(runs, **plan), scheduler)
    assert (job_id, scheduler.jobs()) == ("1", ["1", "2"])
    assert scheduler.start(job_id)
    return run


def failed(runs: Path, scheduler: FakeScheduler, **plan: Any) -> RunFolder:
    """A run whose first attempt failed with its job, while nobody was there."""
    run = running(runs, scheduler, **plan)
    fail(run, scheduler, "1")
    return run


def fail(run: RunFolder, scheduler: FakeScheduler, job_id: str) -> None:
    now = scheduler.clock()
    record = {"job_id": job_id, "restart": 0, "exit_code": 1, "signal": "", "ended": int(now), "nodes": "n[1,3]"}
    run.attempts()[-1].end.write_text(json.dumps(record))
    scheduler.set(job_id, state="FAILED", exit_code=1, ended=now)


@pytest.fixture
def starts(scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Start a successor: what its driver says."""

    def start(run: RunFolder, *told: Any, job_id: str = "2", nodes: str = "n[4-5]", restarts: int = 0) -> str:
        scheduler.set(job_id, state="RUNNING", started=scheduler.clock(), nodes=nodes)
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
        monkeypatch.setenv("SLURM_JOB_NAME", scheduler.job(job_id)["name"])
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        monkeypatch.setenv(same_job.HELD, nodes)
        kind, action, *named = told or ("filesystem_error", "RETRY")
        move = drive(run, scheduler, kind, action, *named, successor=True)
        monkeypatch.delenv("SLURM_JOB_ID")
        return f"{move.kind}: {move.words}"

    return start


def pending(scheduler: FakeScheduler) -> list[str]:
    return [job_id for job_id in scheduler.jobs() if scheduler.record(job_id).state == "PENDING"]


def test_the_next_job_waits_for_the_end_of_the_current_one(runs: Path, scheduler: FakeScheduler) -> None:
    run = running(runs, scheduler)

    successor = scheduler.job("2")
    assert successor["options"] == ["--dependency=afterany:1"]
    assert successor["name"].startswith("tiny.")
    assert successor["name"].endswith(".next")
    status = status_of(run, scheduler)
    assert status.as_json()["successor"] == {"job_id": "2", "state": "PENDING"}
    assert status.state == "STARTING"


@pytest.mark.parametrize("changes", [{"successor": False}, {}])
def test_no_job_waits_where_none_is_wanted(runs: Path, scheduler: FakeScheduler, changes: dict[str, Any]) -> None:
    values = wanted(runs, **changes)
    submit_new(values if changes else prepared(runs), scheduler)
    assert scheduler.jobs() == ["1"]


def test_it_takes_over_and_the_next_one_waits(runs: Path, scheduler: FakeScheduler, starts: Callable[..., str]) -> None:
    run = failed(runs, scheduler)

    assert starts(run) == "submitted: attempt 2 continues in job 2: filesystem_error"

    first, second = run.attempts()
    assert jobs(run) == ["1", "2"]
    assert second.script.read_bytes() == first.script.read_bytes()
    assert second.hosts.read_text().split() == ["n4", "n5"]
    assert scheduler.job("3")["options"] == ["--dependency=afterany:2"]
    assert pending(scheduler) == ["3"]
    assert status_of(run, scheduler).attempts[1].submitted == json.loads(second.job.read_text())["submitted"]
    assert starts(run).startswith("nothing"), "one next attempt for one verdict"
    fail(run, scheduler, "2")
    assert starts(run, "filesystem_error", "RETRY", job_id="3").startswith("ended"), "no progress"


def test_drivers_leave_the_attempt_to_it(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)

    move = drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n3")

    assert move.words.startswith("it continues in job 2, which waits in the queue: ")
    assert scheduler.job("2")["excluded"] == ["n3"]
    assert jobs(run) == ["1"]
    status = status_of(run, scheduler)
    assert status.state == "RETRYING"
    assert "it continues in job 2, which waits in the queue" in (status.reason or "")
    drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n3")
    assert len(scheduler.asked("exclude")) == 1
    assert scheduler.jobs() == ["1", "2"]


@pytest.mark.parametrize("action", ["RETRY", "CONTINUE"])
def test_the_end_hook_leaves_the_attempt_to_it(
    runs: Path, scheduler: FakeScheduler, starts: Callable[..., str], action: Any
) -> None:
    run = running(runs, scheduler, retry=Retry(in_allocation="off"))
    fail(run, scheduler, "1")
    scheduler.set("1", state="RUNNING", ended=None)

    move = drive(run, scheduler, "filesystem_error", action, inside=True, here=True)

    assert move.words.startswith("it continues in job 2, which waits in the queue: ")
    assert scheduler.jobs() == ["1", "2"]
    scheduler.set("1", state="FAILED", ended=scheduler.clock())
    assert starts(run).startswith("submitted: attempt 2 continues in job 2")


NODES: dict[str, tuple[dict[str, Any], dict[str, Any], str, list[str] | None]] = {
    "a spare takes the place of a node": ({"nodes": 2}, {"spares": 1}, "n[1,3,5]", ["n1", "n5"]),
    "a spare is left over": ({"nodes": 2}, {"spares": 1}, "n[5-7]", ["n5", "n6"]),
    "an elastic run goes on with fewer": ({"nodes": None, "least_nodes": 1}, {"nodes": 2}, "n[1,3]", ["n1"]),
    "the first one runs the script": ({"nodes": None, "least_nodes": 1}, {"nodes": 2}, "n[3,5]", None),
    "too few are left": ({"nodes": 2}, {"spares": 1}, "n[1,3]", None),
}
"""The retry plan, the plan, the nodes that the successor got, of which n3 is to be avoided, and those it uses."""


@pytest.mark.parametrize("case", NODES)
def test_the_nodes_of_the_attempt(runs: Path, scheduler: FakeScheduler, starts: Callable[..., str], case: str) -> None:
    retry_plan, plan, held, chosen = NODES[case]
    run = failed(runs, scheduler, more=plan, **retry_plan)

    starts(run, "gpu_hardware", "RETRY_ELSEWHERE", "n3", nodes=held)

    assert jobs(run)[1] == ("2" if chosen else "3")
    assert not chosen or run.attempts()[1].hosts.read_text().split() == chosen


ELSEWHERE: dict[str, dict[str, Any]] = {
    "it has a node that is to be avoided": {"told": ("gpu_hardware", "RETRY_ELSEWHERE", "n3"), "nodes": "n[3-4]"},
    "one of its nodes is out of service": {"nodes": "n[2-3]"},
    "Slurm requeued it before": {"restarts": 1},
    "the pause is long": {"plan": {"retry": Retry(backoff=Backoff(first=60), no_progress=5)}, "again": True},
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_it_submits_another_job_where(
    runs: Path, scheduler: FakeScheduler, starts: Callable[..., str], case: str
) -> None:
    given = dict(ELSEWHERE[case])
    run = failed(runs, scheduler, **given.pop("plan", {}))
    job_id, told = "2", given.pop("told", ())
    if given.pop("again", False):
        starts(run)
        fail(run, scheduler, "2")
        job_id = "3"

    assert starts(run, *told, job_id=job_id, **given).startswith("submitted: attempt")

    waits = str(int(job_id) + 1)
    assert jobs(run)[-1] == waits
    assert scheduler.record(job_id).state == "RUNNING", "it ends by itself"
    assert pending(scheduler) == [waits, str(int(waits) + 1)], "the attempt, and its successor"


@pytest.mark.parametrize("case", ["never starts", "is gone"])
def test_drivers_do_not_wait_for_one_that(runs: Path, scheduler: FakeScheduler, case: str) -> None:
    run = failed(runs, scheduler)
    if case == "is gone":
        scheduler.cancel("2")
    else:
        scheduler.set("2", reason="BadConstraints")

    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "submitted"

    assert jobs(run) == ["1", "3"]
    assert pending(scheduler) == ["3", "4"]


def test_it_goes_when_the_run_stops(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    assert drive(run, scheduler, "import_error", "STOP").kind == "ended"
    assert pending(scheduler) == []


@pytest.mark.parametrize(("name", "left"), [(None, []), ("of another run", ["2"])])
def test_it_goes_when_the_run_is_cancelled_and_no_job_that_has_its_id_now(
    runs: Path, scheduler: FakeScheduler, name: str | None, left: list[str]
) -> None:
    run = running(runs, scheduler)
    scheduler.set("2", name=name or scheduler.job("2")["name"])
    assert cancel_run(run, scheduler) == ["1", "2"][: 2 - len(left)]
    assert pending(scheduler) == left


def test_it_goes_when_a_person_submits_the_next_attempt(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    submit_next(run, wanted(runs), scheduler)
    assert pending(scheduler) == ["3", "4"]


def test_a_driver_cancels_what_a_finished_run_left(runs: Path, scheduler: FakeScheduler, tmp_path: Path) -> None:
    run = running(runs, scheduler)
    scheduler.end("1")
    scheduler.set("1", state="COMPLETED", exit_code=0, ended=scheduler.clock())
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    status = tracker.poll(fresh=True)[run.name]
    assert status.state == "COMPLETED"
    assert Drivers(tracker, Index(tmp_path / "index", {})).due(status)

    recover_run.recover(run, tracker, scheduler)

    assert pending(scheduler) == []
    assert not Drivers(tracker, Index(tmp_path / "index", {})).due(tracker.poll(fresh=True)[run.name])
    assert Reader().read(run.attempts()[0]).successor.over  # type: ignore[union-attr]


def test_the_run_goes_on_without_one_that_slurm_refuses(runs: Path, scheduler: FakeScheduler) -> None:
    scheduler.fault = "refuse successors"
    run, attempt, job_id = submit_new(wanted(runs), scheduler)
    assert scheduler.jobs() == [job_id]
    assert "Invalid account" in (Reader().read(attempt).successor.refused or "")  # type: ignore[union-attr]
    assert status_of(run, scheduler).successor is None


def killed(step: str, act: Callable[[], object]) -> None:
    """Do something in a process that is killed after a step."""
    pid = os.fork()
    if pid == 0:
        os.environ[KILL_AFTER] = step
        try:
            act()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, step


def trained(run: RunFolder, scheduler: FakeScheduler, starts: Callable[..., str]) -> list[str]:
    """The jobs that train when all that wait start, a successor as its script does."""
    result = []
    for job_id in pending(scheduler):
        after = [one.rpartition(":")[2] for one in scheduler.job(job_id)["options"] if "afterany" in one]
        if not all(scheduler.record(one).ended_for_good for one in after):
            continue
        if scheduler.job(job_id)["name"].endswith(".next"):
            newest = jobs(run)[-1]
            if newest not in (None, *after):  # as its script looks (slurm_templates/successor.sh)
                scheduler.set(job_id, state="COMPLETED", ended=scheduler.clock())
                continue
            starts(run, job_id=job_id)
            result += [job_id] if jobs(run)[-1] == job_id else []
        elif scheduler.start(job_id):
            result.append(job_id)
    return result


@pytest.mark.parametrize("step", successor_job.SUCCESSOR_STEPS)
def test_a_submitter_that_is_killed_leaves_at_most_one(
    runs: Path, scheduler: FakeScheduler, starts: Callable[..., str], step: str
) -> None:
    killed(step, lambda: submit_new(wanted(runs), scheduler))
    run = RunFolder(next(runs.iterdir()))
    assert status_of(run, scheduler).state == "PENDING"
    assert scheduler.start("1")
    fail(run, scheduler, "1")

    moves = [drive(run, scheduler, "filesystem_error", "RETRY").kind for _ in range(2)]

    assert moves == (["waiting"] * 2 if step == "successor known" else ["submitted", "nothing"])
    assert len(trained(run, scheduler, starts)) == 1
    assert len(run.attempts()) == 2


@pytest.mark.parametrize("step", [*recover_run.STEPS, *successor_job.CONTINUE_STEPS, *successor_job.SUCCESSOR_STEPS])
def test_a_successor_that_is_killed_loses_nothing_and_doubles_nothing(
    runs: Path, scheduler: FakeScheduler, starts: Callable[..., str], step: str
) -> None:
    run = failed(runs, scheduler, retry=Retry(no_progress=9, backoff=Backoff(first=1)))
    killed(step, lambda: starts(run))
    scheduler.set("2", state="FAILED", exit_code=1, started=scheduler.clock(), ended=scheduler.clock() + 1, nodes="n4")
    scheduler.clock = Clock(scheduler.clock() + GRACE_S + 1)

    for _ in range(4):
        drive(run, scheduler, "filesystem_error", "RETRY")
    assert len([job_id for job_id in pending(scheduler) if scheduler.job(job_id)["name"].endswith(".next")]) <= 1

    assert len(trained(run, scheduler, starts)) == 1
