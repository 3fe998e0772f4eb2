"""A run continues in the job of its failed attempt where that job can do it, and in a new one everywhere else."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.job.retry import Backoff, Retry
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.retry import recover_run, same_job
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import of_attempt
from hpc_launch.runs.records.submission import abandon
from hpc_launch.runs.records.verdict_record import read_verdict
from hpc_launch.runs.submitting import successor_job
from hpc_launch.runs.submitting.reconcile import GRACE_S
from hpc_launch.runs.submitting.run_store import KILL_AFTER, write_after
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.schedulers.scheduler import JobRecord
from tests.retry.driver import drive, jobs
from tests.runs.fake import Clock, FakeScheduler
from tests.runs.samples import in_another_process, prepared, status_of

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2   # job.yaml:3\n#SBATCH --mem=4G   # job.yaml:4\ntrue\n"


@pytest.fixture(autouse=True)
def end_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour is left."""
    monkeypatch.setenv(same_job.END_TIME, str(int(time.time()) + 3600))


def crashed(
    runs: Path,
    scheduler: FakeScheduler,
    *,
    node: str = "n1",
    retry: Retry | None = None,
    elastic: tuple[int, int] | None = None,
    **end: Any,
) -> RunFolder:
    """A run whose only attempt has crashed, while its job still runs the end hook."""
    fewest, most = elastic or (1, 1)
    plan = RetryPlan(nodes=None if elastic else 1, least_nodes=fewest, partition="gpu", retry=retry or Retry())
    data = {"scheduler": "slurm", "nodes": most, "recovery": plan, "excluded": []}
    run, attempt, job_id = submit_new(prepared(runs, plan=data, secrets={}, script=SCRIPT), scheduler)
    assert scheduler.start(job_id)
    scheduler.set(job_id, nodes=node)
    write_after(run)
    record = {"job_id": job_id, "restart": 0, "exit_code": 1, "signal": "", "phase": "ended", "nodes": node}
    attempt.end.write_text(json.dumps({**record, "ended": int(scheduler.clock()), **end}))
    return run


def hook(run: RunFolder, scheduler: FakeScheduler, *told: Any) -> str:
    """What the job's end hook says that it did."""
    kind, action, *nodes = told or ("filesystem_error", "RETRY")
    move = drive(run, scheduler, kind, action, *nodes, inside=True, here=True)
    return f"{move.kind}: {move.words}"


def test_the_job_goes_on_with_the_next_attempt(runs: Path, scheduler: FakeScheduler) -> None:
    run = crashed(runs, scheduler)

    assert hook(run, scheduler) == "submitted: attempt 2 continues in job 1: filesystem_error"

    first, second = run.attempts()
    assert (jobs(run), scheduler.jobs()) == (["1", "1"], ["1"])
    assert second.script.read_bytes() == first.script.read_bytes()
    status = status_of(run, scheduler)
    assert [one.state for one in status.attempts] == ["FAILED", "RUNNING"]
    assert status.state == "STARTING"
    assert hook(run, scheduler).startswith("nothing"), "one next attempt for one verdict"


def test_only_a_hang_tells_who_ended_the_launcher(runs: Path, scheduler: FakeScheduler) -> None:
    """The watcher ends torchrun by SIGTERM, as Slurm does before a preemption, while the job is RUNNING."""
    run = crashed(runs, scheduler, exit_code=143, ended=int(scheduler.clock()) - 5)
    told = ("hang_no_progress", "RETRY")
    assert hook(run, scheduler, *told) == "nothing: "

    hang = run.attempts()[0].hang
    hang.parent.mkdir()
    hang.write_text(json.dumps({"t": scheduler.clock(), "node": 0, "host": "n1", "silent_s": 60, "idle": True}))

    assert hook(run, scheduler, *told) == "submitted: attempt 2 continues in job 1: hang_no_progress"


def test_the_end_of_the_job_is_that_of_its_last_attempt(runs: Path, scheduler: FakeScheduler) -> None:
    run = crashed(runs, scheduler)
    hook(run, scheduler)
    second = run.attempts()[1]
    second.claim.write_text("1\n")
    now = int(scheduler.clock())
    record = {"job_id": "1", "restart": 0, "first_step": 3, "started": now, "nodes": "n1"}
    second.start.write_text(json.dumps(record))
    second.end.write_text(json.dumps({**record, "exit_code": 0, "signal": "", "ended": now}))
    scheduler.source = "sacct"
    failed_step, good_step = ("0", "FAILED", "1:0"), ("3", "COMPLETED", "0:0")
    steps = (("batch", "COMPLETED", "0:0"), failed_step, good_step)
    scheduler.set("1", state="COMPLETED", exit_code=0, derived_exit_code=1, ended=now, steps=steps)

    status = status_of(run, scheduler)

    assert [(one.state, one.exit_code) for one in status.attempts] == [("FAILED", 1), ("COMPLETED", 0)]
    assert status.state == "COMPLETED"
    assert not run.attempts()[0].final.exists()


@pytest.mark.parametrize("state", ["NODE_FAIL", "TIMEOUT", "CANCELLED"])
def test_a_job_that_is_ended_from_outside_ends_its_last_attempt(
    runs: Path, scheduler: FakeScheduler, state: str
) -> None:
    run = crashed(runs, scheduler)
    hook(run, scheduler)
    scheduler.set("1", state=state, ended=scheduler.clock())

    assert [one.state for one in status_of(run, scheduler).attempts] == ["FAILED", state]


CASES: dict[str, dict[str, Any]] = {
    "no time is left": {"left_s": same_job.MARGIN_S - 5},
    "the end is not known": {"left_s": None},
    "the node is out of service": {"node": "n2"},
    "the node is to be avoided": {"told": ("gpu_hardware", "RETRY_ELSEWHERE", "n1")},
    "the end was announced": {"end": {"warned": True}},
    "a node was lost": {"end": {"lost_nodes": 1}},
    "it is switched off": {"retry": Retry(in_allocation="off")},
    "the job ends": {"state": "COMPLETING"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_new_job_where(runs: Path, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    given = CASES[case]
    run = crashed(runs, scheduler, node=given.get("node", "n1"), retry=given.get("retry"), **given.get("end", {}))
    if "left_s" in given:
        left = given["left_s"]
        monkeypatch.setenv(same_job.END_TIME, "" if left is None else str(time.time() + left))
    if "state" in given:
        scheduler.set("1", state=given["state"])

    assert hook(run, scheduler, *given.get("told", ())).startswith("submitted: attempt 2 is job 2")

    assert jobs(run) == ["1", "2"]
    options = json.loads(run.attempts()[1].intent.read_text())["options"]
    assert "--dependency=afterany:1" in options


SPARES = [
    ("n[1,3-5]", "n[1,3]", (), ["n1", "n3"]),
    ("n[1,3-5]", "n[1,3]", ("n3",), ["n1", "n4"]),
    ("n[1,3-5]", "n[1,4]", ("n4",), ["n1", "n3"]),
    ("n[1,3-5]", "n[1,5]", (), ["n1", "n5"]),
    ("n[1-3]", "n[1-2]", (), ["n1", "n3"]),  # n2 is out of service
    ("n[1,3-8]", "n[1,3,6]", ("n3",), ["n1", "n4", "n6"]),
    ("n[1,3]", "n[1,3]", ("n3",), None),
    ("n[1,3-4]", "n[1,3]", ("n1",), None),
]
"""The job's nodes, those of the attempt, the one that the diagnosis names, and those of the next attempt, None: it
needs a new job, as no spare is left or the first node failed."""

ELASTIC = [
    ("n[1,3-4]", "n[1,3-4]", ("n3",), ["n1", "n4"]),
    ("n[1-4]", "n[1-4]", (), ["n1", "n3", "n4"]),  # n2 is out of service
    ("n[1,3-6]", "n[1,3-5]", ("n4",), ["n1", "n3", "n5", "n6"]),
    ("n[1,3-6]", "n[1,3]", (), ["n1", "n3", "n4", "n5"]),
    ("n[1,3]", "n[1,3]", ("n3",), None),
    ("n[1,3-5]", "n[1,3-5]", ("n1",), None),
]
"""As above, for a run on two to four nodes, which goes on with fewer."""


@pytest.mark.parametrize(
    ("elastic", "lost", "case"),
    [(None, 0, one) for one in SPARES] + [((2, 4), lost, one) for one in ELASTIC for lost in (0, 1)],
)
def test_the_nodes_of_the_next_attempt_in_the_job(  # noqa: PLR0917 - the columns of the tables above
    runs: Path,
    scheduler: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    elastic: tuple[int, int] | None,
    lost: int,
    case: tuple[str, str, tuple[str, ...], list[str] | None],
) -> None:
    held, used, named, chosen = case
    monkeypatch.setenv(same_job.HELD, held)
    run = crashed(runs, scheduler, node=used, elastic=elastic, lost_nodes=lost)

    outcome = hook(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", *named)

    assert outcome.startswith("submitted: attempt 2 " + ("continues" if chosen else "is job 2"))
    assert not chosen or run.attempts()[1].hosts.read_text().split() == chosen


def test_a_long_pause_is_spent_in_the_queue(runs: Path, scheduler: FakeScheduler) -> None:
    run = crashed(runs, scheduler, retry=Retry(no_progress=5, backoff=Backoff(first=16, factor=2)))
    hook(run, scheduler)
    second = run.attempts()[1]
    second.claim.write_text("1\n")
    second.end.write_text(run.attempts()[0].end.read_text())

    assert hook(run, scheduler).startswith("submitted: attempt 3 is job 2")


@pytest.mark.parametrize("step", [*recover_run.STEPS, *successor_job.CONTINUE_STEPS])
def test_a_hook_that_is_killed_loses_nothing_and_doubles_nothing(
    runs: Path, scheduler: FakeScheduler, step: str
) -> None:
    run = crashed(runs, scheduler)
    told = (scheduler.folder, run.path, "filesystem_error", "RETRY", "--here")
    inside = {KILL_AFTER: step, "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}
    killed = in_another_process("tests.retry.driver", *told, **inside)
    killed.communicate(timeout=180)
    assert killed.returncode == -signal.SIGKILL
    if jobs(run) == ["1", "1"]:
        assert step == "job"
        return  # the job's script starts it
    scheduler.set("1", state="FAILED", exit_code=1, ended=scheduler.clock())
    scheduler.clock = Clock(scheduler.clock() + GRACE_S + 1)

    moves = [drive(run, scheduler, "filesystem_error", "RETRY").kind for _ in range(2)]

    assert "submitted" in moves, moves
    assert [job for job in jobs(run) if job] == ["1", "2"]


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ({"exit_code": 143, "signal": "TERM"}, ["1"]),
        ({"exit_code": 143}, ["1"]),
        ({"exit_code": 130}, ["1"]),
        ({"exit_code": 137}, ["1", "1"]),  # something on the node killed a rank
    ],
)
def test_after_a_signal_to_the_job_the_hook_decides_nothing(
    runs: Path, scheduler: FakeScheduler, end: dict[str, Any], found: list[str]
) -> None:
    run = crashed(runs, scheduler, **end)
    said = hook(run, scheduler)
    assert said.startswith(("nothing", "waiting") if found == ["1"] else "submitted: attempt 2 continues in job 1")
    assert jobs(run) == found


def test_other_drivers_leave_the_nodes_to_the_job_until_it_has_decided(runs: Path, scheduler: FakeScheduler) -> None:
    run = crashed(runs, scheduler)
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "waiting"
    assert (jobs(run), read_verdict(run.attempts()[0])) == (["1"], None)

    run.attempts()[0].hook_log.write_text("the end hook cannot run here")

    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "submitted"
    assert jobs(run) == ["1", "2"]


def test_a_job_that_is_gone_or_does_not_decide_is_not_waited_for(runs: Path, scheduler: FakeScheduler) -> None:
    gone = crashed(runs, scheduler)
    scheduler.set("1", state="FAILED", ended=scheduler.clock())
    silent = crashed(runs, scheduler, ended=int(scheduler.clock() - same_job.HOOK_S - 1))

    assert drive(gone, scheduler, "filesystem_error", "RETRY").kind == "submitted"
    assert drive(silent, scheduler, "filesystem_error", "RETRY").kind == "submitted"


def test_a_new_job_follows_where_the_nodes_are_not_free_of_the_old_attempt(
    runs: Path, scheduler: FakeScheduler
) -> None:
    run = crashed(runs, scheduler)
    hook(run, scheduler)
    abandon(run.attempts()[1], "never submitted: processes of attempt 001 may be left")

    assert hook(run, scheduler).startswith("submitted: attempt 3 is job 2")

    assert jobs(run) == ["1", "1", "2"]
    options = json.loads(run.attempts()[2].intent.read_text())["options"]
    assert "--dependency=afterany:1" in options, "what is left must end before the new job begins"


def test_the_record_of_a_job_without_steps_says_nothing_of_earlier_attempts() -> None:
    record = JobRecord("1", "COMPLETED", derived_exit_code=1)
    assert of_attempt(record, None) is record
    assert of_attempt(record, 2).derived_exit_code is None
