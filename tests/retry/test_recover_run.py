"""What follows the end of an attempt: once, by whichever driver is there first, and as the record says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.base.errors import Unreachable, UsageError
from hpc_launch.job.retry import Reaction, Retry, RetryStep
from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.retry import recover_run
from hpc_launch.retry.context import read_context
from hpc_launch.retry.decision import hosts_back, next_attempt
from hpc_launch.retry.drivers import DriverOutcome, Drivers
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.runs.records.submission import NEVER_SUBMITTED, abandon
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.reconcile import GIVE_UP_S, GRACE_S
from hpc_launch.runs.submitting.run_store import KILL_AFTER, STOP_AFTER
from hpc_launch.runs.submitting.submit_attempt import STEPS, submit_new, submit_next
from hpc_launch.service import poll
from tests.retry.driver import drive
from tests.runs.fake import Clock, FakeScheduler
from tests.runs.samples import in_another_process, prepared, status_of

BEFORE_SBATCH = (*recover_run.STEPS, *STEPS[1 : STEPS.index("submitted")])
AFTER_SBATCH = STEPS[STEPS.index("submitted") :]


def failed(runs: Path, scheduler: FakeScheduler, *, ended: bool = True, **plan: Any) -> RunFolder:
    """A run whose first attempt failed; with `ended` by its own record too."""
    recovery_plan = RetryPlan(**{"nodes": 2, "least_nodes": 2, "partition": "gpu", **plan})
    data = {"scheduler": "slurm", "recovery": recovery_plan, "excluded": []}
    run, _, job_id = submit_new(prepared(runs, plan=data, secrets={}), scheduler)
    fail(run, scheduler, job_id, ended=ended)
    return run


def fail(run: RunFolder, scheduler: FakeScheduler, job_id: str, *, ended: bool = True) -> None:
    attempt = run.attempts()[-1]
    assert scheduler.start(job_id)
    now = scheduler.clock()
    if ended:
        record = {"job_id": job_id, "restart": 0, "exit_code": 1, "signal": "", "ended": now, "nodes": "n[1-2]"}
        attempt.end.write_text(json.dumps(record))
    scheduler.set(job_id, state="FAILED", exit_code=1, ended=now)


class Broken(RunTracker):
    """A tracker that cannot read what a run's files contain."""

    def views(self, run: RunFolder) -> Any:
        raise ValueError(f"{run.name} is odd")


def test_an_error_of_our_own_leaves_one_run_alone_and_not_all(tmp_path: Path) -> None:
    scheduler = FakeScheduler(tmp_path / "scheduler")
    run = failed(tmp_path / "runs", scheduler)
    outcome = Drivers(Broken([run], lambda _: scheduler), Index(tmp_path / "index", {})).drive(run)
    assert outcome.kind == "nothing"
    assert f"{run.name} is odd" in outcome.words
    assert f"hpc-launch why {run.name}" in outcome.words


def options(run: RunFolder) -> list[str]:
    told: list[str] = json.loads(run.attempts()[-1].intent.read_text())["options"]
    return told


def driver(run: RunFolder, scheduler: FakeScheduler, *told: str, **environment: str) -> subprocess.Popen[str]:
    return in_another_process("tests.retry.driver", scheduler.folder, run.path, *told, **environment)


def trained(scheduler: FakeScheduler) -> list[str]:
    """The jobs that train when all that wait start."""
    return [
        job_id for job_id in scheduler.jobs() if scheduler.record(job_id).state == "PENDING" and scheduler.start(job_id)
    ]


def test_the_same_again_has_the_same_script_and_a_pause(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)

    move = drive(run, scheduler, "filesystem_error", "RETRY")

    assert move.kind == "submitted", move
    first, second = run.attempts()
    assert second.script.read_bytes() == first.script.read_bytes()
    assert options(run) == ["--begin=now+30"]
    status = status_of(run, scheduler)
    assert (status.state, status.attempts[0].failure_class, status.attempts[0].verdict) == (
        "PENDING",
        "filesystem_error",
        "RETRY",
    )


def test_what_stops_is_on_record_and_stays_so(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)

    assert drive(run, scheduler, "import_error", "STOP").kind == "ended"
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "ended", "the first verdict stands"

    status = status_of(run, scheduler)
    assert (status.state, status.final, len(status.attempts)) == ("FAILED", True, 1)
    assert "no other attempt" in (status.reason or "")


@pytest.mark.parametrize(
    ("shown", "kind"), [("the file", "ended"), ("a step", "ended"), ("a saved step", "ended"), ("a step to save", "")]
)
def test_a_training_that_is_complete_is_not_repeated(
    runs: Path, scheduler: FakeScheduler, shown: str, kind: str
) -> None:
    run = failed(runs, scheduler)
    attempt, checkpoints = run.attempts()[0], run.path / "checkpoints"
    if shown == "the file":
        attempt.done.touch()
    else:
        attempt.logs.mkdir(exist_ok=True)
        (attempt.logs / "node-0.log").write_text("step 4/5\nstep 5/5\n")
        saves = {"dir": [None, "/checkpoints"], "pattern": r"step-(\d+)"} if shown != "a step" else None
        more = {"progress": {"step": r"step (\d+)/(\d+)"}, "checkpoint": saves}
        attempt.plan.write_text(json.dumps(json.loads(attempt.plan.read_text()) | more))
        checkpoints.mkdir()
        (checkpoints / ("step-5" if shown == "a saved step" else "step-4")).write_text("x")
    outcome = drive(run, scheduler, "segfault_or_abort", "RETRY")
    assert (outcome.kind == "ended") is (kind == "ended"), outcome
    assert ("ended with segfault_or_abort" in (status_of(run, scheduler).reason or "")) is (kind == "ended")


def test_hosts_that_are_away_or_taken_are_waited_for(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    scheduler.occupied = "gpu2 is in use by bob"
    outcome = drive(run, scheduler, "node_failure", "RETRY")
    assert (outcome.kind, outcome.words) == ("waiting", "the next attempt waits for its hosts: gpu2 is in use by bob")
    scheduler.occupied = None
    assert drive(run, scheduler, "node_failure", "RETRY").kind == "submitted"


@pytest.mark.parametrize("cause", ["host_connection", "node_check"])
def test_a_host_that_answers_again_is_used_again_where_that_was_the_reason(
    runs: Path, scheduler: FakeScheduler, cause: str
) -> None:
    plan = {
        "scheduler": "ssh",
        "recovery": RetryPlan(nodes=2, least_nodes=1),
        "world_size": 3,
        "excluded": ["n1", "n2"],
    }
    run, _, job_id = submit_new(prepared(runs, plan={**plan, "world_size": 4}, scheduler="ssh", secrets={}), scheduler)
    told = {"action": "RETRY_ELSEWHERE", "cause": cause, "failure_class": "node_failure", "exclude": ["n1", "n2"]}
    run.attempts()[0].verdict.write_text(json.dumps(told))
    fail(run, scheduler, job_id)
    _, _, job_id = submit_next(run, prepared(runs, plan=plan, scheduler="ssh", secrets={}), scheduler)
    assert "attempt 2 has 3 processes instead of 4" in status_of(run, scheduler).warnings
    fail(run, scheduler, job_id)
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    tracker.poll(fresh=True)
    context = read_context(run, tracker, scheduler)
    assert context is not None
    verdict = VerdictRecord(action="RETRY")
    assert list(hosts_back(context, verdict)) == (["n1"] if cause == "host_connection" else []), "n2 is down"
    assert list(hosts_back(context, VerdictRecord(action="RETRY_ELSEWHERE", exclude=("n1",)))) == []


HOSTS = """\
name: lab
title: Three hosts
scheduler: {type: ssh, hosts: {n1: 2, n2: 2, n3: 1}}
node_classes: {host: {cpus: 2}}
queues: {all: {node_class: host, memory: omit}}
"""


@pytest.mark.parametrize(
    ("batch", "action", "reason"),
    [
        (12, "RETRY_ELSEWHERE", "; the next attempt has 3 processes instead of 4"),
        (8, "STOP", r"; the changed job is refused: .*HL610 the global batch 8 is not divisible by .* 3"),
    ],
)
def test_fewer_processes_are_announced_and_refused_where_the_batch_needs_them(
    runs: Path, scheduler: FakeScheduler, batch: int, action: str, reason: str
) -> None:
    job = f"name: tiny\nnodes: 2\nlauncher: torchrun\ntime: 60\nscript: {__file__}\n"
    job += f"strategy: {{name: ddp, global_batch: {batch}, micro_batch: 1}}\n"
    plan = {"scheduler": "ssh", "recovery": RetryPlan(nodes=2, least_nodes=2, site_hosts=3), "world_size": 4}
    texts = {"job_yaml": job, "site_yaml": HOSTS, "site": "lab", "scheduler": "ssh", "secrets": {}}
    run, _, job_id = submit_new(prepared(runs, plan=plan, **texts), scheduler)
    fail(run, scheduler, job_id)
    drive(run, scheduler, "node_failure", "RETRY_ELSEWHERE", "n2")
    verdict = json.loads(run.attempts()[0].verdict.read_text())
    assert verdict["action"] == action
    assert re.search(reason, verdict["reason"]), verdict


def test_the_environment_of_a_script_that_was_killed_is_removed(runs: Path, scheduler: FakeScheduler) -> None:
    """With mpirun, ibrun and pdsh it holds the values of `secrets:`."""
    run = failed(runs, scheduler)
    left = run.attempts()[0].environment
    left.write_text("export WANDB_API_KEY=1234\n")
    drive(run, scheduler, "data_error", "STOP")
    assert not left.exists()


def test_a_bad_node_is_kept_off_and_noted(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler, exclude=("n9",))

    assert drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1").kind == "submitted"

    assert options(run) == ["--exclude=n9,n1"], "the option replaces the script's own directive"
    assert status_of(run, scheduler).attempts[1].overrides.by_name() == {"exclude": ("n1",)}
    assert [(one.node, one.count, one.notes[0].run) for one in NodeHealthStore("test").standing()] == [
        ("n1", 1, run.name)
    ]


def test_the_output_of_a_rank_alone_is_no_evidence_for_the_team(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)

    assert drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1", log="node-0.log").kind == "submitted"

    assert status_of(run, scheduler).attempts[1].overrides.by_name() == {"exclude": ("n1",)}
    assert NodeHealthStore("test").standing() == []


def test_a_requeue_by_slurm_does_not_reset_the_limit_on_excluded_nodes(runs: Path, scheduler: FakeScheduler) -> None:
    """Slurm starts the same job again in a new attempt folder, which has no plan.json of its own."""
    plan = {"scheduler": "slurm", "recovery": RetryPlan(retry=Retry(most_excluded=2))}
    run, _, job_id = submit_new(prepared(runs, plan={**plan, "excluded": ["n1", "n2"]}, secrets={}), scheduler)
    assert scheduler.start(job_id)
    again = run.attempt(2)
    again.logs.mkdir(parents=True)
    now = scheduler.clock()
    again.claim.write_text(f"{job_id}\n")
    again.job.write_text(json.dumps({"job_id": job_id, "restart": 1}))
    again.end.write_text(json.dumps({"job_id": job_id, "restart": 1, "exit_code": 1, "ended": now}))
    scheduler.set(job_id, state="FAILED", exit_code=1, ended=now, restarts=1)

    assert drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n3").kind == "submitted"

    assert options(run)[0] == "--exclude=n1,n2", "n3 would be the third"


@pytest.mark.parametrize(
    ("plan", "named", "state", "excluded"),
    [
        ({}, (), "down*", ["--exclude=n2"]),
        ({}, (), "draining", []),  # an administrator drains it; it did not fail
        # The job needs all nodes.
        ({"nodes": 4, "least_nodes": 4}, ("n1",), "down*", []),
        ({"site_hosts": 2}, ("n1",), "down*", []),
    ],
)
def test_the_nodes_that_the_next_attempt_keeps_off(  # noqa: PLR0917 - the columns of the table above
    runs: Path,
    scheduler: FakeScheduler,
    plan: dict[str, Any],
    named: tuple[str, ...],
    state: str,
    excluded: list[str],
) -> None:
    run = failed(runs, scheduler, ended=bool(named), **plan)
    scheduler.states = {"n2": state}
    if not named:
        scheduler.set("1", state="NODE_FAIL", exit_code=None)
    kind = "gpu_hardware" if named else "node_failure"

    assert drive(run, scheduler, kind, "RETRY_ELSEWHERE", *named).kind == "submitted"

    assert [option for option in options(run) if option.startswith("--exclude")] == excluded


def test_a_copy_of_a_run_is_left_alone(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    copy = RunFolder(run.path.with_name("backup"))
    shutil.copytree(run.path, copy.path)

    outcome = drive(copy, scheduler, "node_failure", "RETRY")
    assert (outcome.kind, outcome.words) == ("nothing", f"not continued: {copy.path} is a copy of the run {run.name}")
    with pytest.raises(UsageError, match=f"is a copy of the run {run.name}"):
        next_attempt(copy)
    assert drive(run, scheduler, "node_failure", "RETRY").kind == "submitted"


def test_inside_the_job_the_next_one_waits_for_this_one(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    scheduler.set("1", state="RUNNING", exit_code=None, ended=None)

    assert drive(run, scheduler, "import_error", "STOP", inside=True).kind != "ended", "others may know more"
    assert not run.attempts()[0].verdict.exists()
    assert drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1", inside=True).kind == "submitted"

    assert options(run) == ["--exclude=n1", "--dependency=afterany:1"]


def test_a_job_that_somebody_ends_is_left_to_the_scheduler_s_word(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    plan = run.attempts()[0].plan
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"progress": {"step": r"step (\d+)/(\d+)"}}))
    scheduler.speak("1", "step 7/30")
    end = json.loads(run.attempts()[0].end.read_text())
    run.attempts()[0].end.write_text(json.dumps({**end, "exit_code": 143, "signal": "TERM"}))
    scheduler.set("1", state="RUNNING", exit_code=None, ended=None)

    assert drive(run, scheduler, "filesystem_error", "RETRY", inside=True).kind == "nothing"
    scheduler.set("1", state="COMPLETING", reason="TimeLimit")
    assert drive(run, scheduler, "unknown", "STOP", inside=True).kind == "submitted"

    assert status_of(run, scheduler).attempts[0].failure_class == "time_limit"


def test_a_failure_whose_verdict_has_to_wait_is_not_final(runs: Path, scheduler: FakeScheduler) -> None:
    status = status_of(failed(runs, scheduler), scheduler)

    assert (status.state, status.undecided) == ("FAILED", True)
    assert poll.shown(status, DriverOutcome("waiting", "accounting is late"), time.time()).state == "ENDING"
    assert poll.shown(status, DriverOutcome("ended", "it stops here"), time.time()).state == "FAILED"


def test_a_cancel_between_two_attempts_holds(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    told = {"action": "RETRY", "reason": "stale", "failure_class": "filesystem_error", "time": 1, "not_before": 1}
    run.attempts()[0].verdict.write_text(json.dumps(told))
    assert status_of(run, scheduler).state == "RETRYING"

    cancel_run(run, scheduler)

    assert status_of(run, scheduler).state == "CANCELLED"
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "ended"
    assert scheduler.jobs() == ["1"]


def test_a_refused_attempt_ends_the_run_with_the_scheduler_s_words(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    scheduler.fault = "refuse"

    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "waiting"
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "ended"

    status = status_of(run, scheduler)
    assert (status.state, status.attempts[1].failure_class) == ("STOPPED", "submit_rejected")
    assert "Invalid account" in (status.reason or "")


@pytest.mark.parametrize(
    ("more", "saved", "said"),
    [
        ({}, None, "has no `checkpoint:` nor `progress:`"),
        ({"progress": {"step": "epoch (.)"}}, None, "`progress.step` matches no line of its log"),
        ({"progress": {"step": r"step (\d+)/(\d+)"}}, None, None),
        ({"checkpoint": {"dir": [None, "/saved"], "pattern": r"step-(\d+)"}}, None, "it left no checkpoint"),
        ({"checkpoint": {"dir": [None, "/saved"], "pattern": r"step-(\d+)"}}, 0, None),
        ({"checkpoint": {"dir": [None, "/saved"], "pattern": r"step-(\d+)"}}, -3600, "is older than its start"),
        ({"checkpoint": {"dir": [None, "/saved"], "pattern": "best"}}, -3600, "is older than its start"),
    ],
)
def test_after_the_time_limit_a_run_continues_only_from_something_new(
    runs: Path, scheduler: FakeScheduler, more: dict[str, Any], saved: int | None, said: str | None
) -> None:
    run = failed(runs, scheduler)
    plan = run.attempts()[0].plan
    plan.write_text(json.dumps(json.loads(plan.read_text()) | more))
    scheduler.speak("1", "step 7/30")
    (run.path / "saved").mkdir()
    if saved is not None:
        name = "best" if more["checkpoint"]["pattern"] == "best" else "step-7"
        (run.path / "saved" / name).write_text("x")
        os.utime(run.path / "saved" / name, (time.time() + saved,) * 2)
    move = drive(run, scheduler, "time_limit", "CONTINUE")
    assert (move.kind == "submitted") is (said is None), move
    assert (said or "") in move.words


def test_what_the_scheduler_does_not_take_at_present_is_tried_again_for_some_days(
    runs: Path, scheduler: FakeScheduler
) -> None:
    """A limit that other jobs fill, a partition in drain, a controller that is away."""
    clock = scheduler.clock = Clock()
    run = failed(runs, scheduler)
    scheduler.fault = "full"

    for _ in range(3):
        move = drive(run, scheduler, "filesystem_error", "RETRY")
        assert (move.kind, len(run.attempts())) == ("waiting", 1), move
        assert "QOSMaxSubmitJobPerUserLimit" in move.words
    assert len(scheduler.tried) == 2, "every five minutes"
    status = status_of(run, scheduler)
    assert status.state == "RETRYING"
    assert "it is tried again every 5 minutes until" in (status.reason or "")

    clock.sleep(301)
    drive(run, scheduler, "filesystem_error", "RETRY")
    assert len(scheduler.tried) == 3
    clock.sleep(3600)
    scheduler.fault = ""
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "submitted"
    assert status_of(run, scheduler).state == "PENDING"


def test_what_does_not_pass_for_days_stops_the_run(runs: Path, scheduler: FakeScheduler) -> None:
    clock = scheduler.clock = Clock()
    run = failed(runs, scheduler)
    scheduler.fault = "full"
    drive(run, scheduler, "filesystem_error", "RETRY")
    clock.sleep(3 * 86400 + 301)
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "waiting"
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "ended"
    status = status_of(run, scheduler)
    assert status.state == "STOPPED"
    assert "QOSMaxSubmitJobPerUserLimit" in (status.reason or "")


def test_a_change_that_would_be_refused_stops_with_the_reason(runs: Path, scheduler: FakeScheduler) -> None:
    retry = Retry(on={"host_oom": Reaction(steps=[RetryStep(set={"nodes": 99})])})
    run = failed(runs, scheduler, retry=retry)

    move = drive(run, scheduler, "host_oom", "RETRY_CHANGED")

    assert move.kind == "ended"
    assert "the changed job is refused" in move.words


def test_runs_of_others_and_of_older_versions_are_left_alone(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    plan = run.attempts()[0].plan
    whole = plan.read_text()
    plan.write_text("{}")
    assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "nothing"
    plan.write_text(whole)
    if os.getuid() == 0:
        os.chown(run.path, 12345, -1)
        assert drive(run, scheduler, "filesystem_error", "RETRY").kind == "nothing"
    assert len(run.attempts()) == 1


def test_two_failures_without_progress_end_the_run(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    assert drive(run, scheduler, "nccl_timeout", "RETRY").kind == "submitted"
    fail(run, scheduler, "2")

    move = drive(run, scheduler, "nccl_timeout", "RETRY")

    assert move.kind == "ended"
    assert "in a row made no progress" in move.words


def test_after_a_person_s_resubmission_the_counting_begins_anew(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    assert drive(run, scheduler, "import_error", "STOP").kind == "ended"
    again = prepared(runs, plan=json.loads(run.attempts()[0].plan.read_text()), secrets={})
    submit_next(run, again, scheduler)
    fail(run, scheduler, "2")

    assert drive(run, scheduler, "nccl_timeout", "RETRY").kind == "submitted"


def waits(runs: Path, scheduler: FakeScheduler, reason: str) -> tuple[RunFolder, Clock]:
    """A run whose job, 1, waits for a reason, and the time."""
    clock = scheduler.clock = Clock()
    plan = {"scheduler": "slurm", "recovery": RetryPlan(), "excluded": []}
    run, _, job_id = submit_new(prepared(runs, plan=plan, secrets={}), scheduler)
    scheduler.set(job_id, reason=reason)
    return run, clock


def stuck(run: RunFolder, scheduler: FakeScheduler) -> str:
    tracker = RunTracker([run], lambda _: scheduler, clock=scheduler.clock)
    tracker.poll(fresh=True)
    return recover_run.recover(run, tracker, scheduler).kind


@pytest.mark.parametrize(
    ("reason", "said"),
    [("PartitionNodeLimit", "more or fewer nodes"), ("DependencyNeverSatisfied", "did not end as required")],
)
def test_a_job_that_can_never_start_is_taken_out(runs: Path, scheduler: FakeScheduler, reason: str, said: str) -> None:
    run, clock = waits(runs, scheduler, reason)

    assert stuck(run, scheduler) == "waiting"
    assert scheduler.record("1").state == "PENDING", "somebody may mend it"
    clock.sleep(301)
    assert stuck(run, scheduler) == "waiting"
    assert scheduler.record("1").state == "CANCELLED"

    status = status_of(run, scheduler)
    assert (status.state, status.attempts[0].failure_class) == ("STOPPED", "submit_rejected")
    assert said in (status.reason or "")


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "SPECIAL_EXIT", "Resources"])
def test_what_a_person_holds_is_left_to_that_person(runs: Path, scheduler: FakeScheduler, reason: str) -> None:
    run, clock = waits(runs, scheduler, reason)

    for _ in range(2):
        assert stuck(run, scheduler) == "nothing"
        clock.sleep(10_000)
    assert scheduler.record("1").state == "PENDING"


# --- Many drivers, killed and frozen ones ---


@pytest.mark.slow
def test_of_many_drivers_at_once_one_makes_the_next_attempt(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)

    drivers = [driver(run, scheduler, "node_failure", "RETRY_ELSEWHERE", f"n{number}") for number in range(6)]
    said = [one.communicate(timeout=180)[0].split()[0] for one in drivers]

    assert said.count("submitted") == 1, said
    assert len(run.attempts()) == 2
    assert len(scheduler.jobs()) == 2
    assert len(NodeHealthStore("test").notes()) == 1, "one verdict, one note"


@pytest.mark.parametrize("step", BEFORE_SBATCH)
def test_killed_before_sbatch_the_next_driver_goes_on(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    run = failed(runs, scheduler)
    killed = driver(run, scheduler, "nccl_timeout", "RETRY", **{KILL_AFTER: step})
    killed.communicate(timeout=180)
    assert killed.returncode == -signal.SIGKILL
    now = scheduler.clock()
    scheduler.clock = Clock(now + GIVE_UP_S + 1)

    moves = [drive(run, scheduler, "nccl_timeout", "RETRY").kind for _ in range(2)]

    assert "submitted" in moves, moves
    assert len(trained(scheduler)) == 1
    assert status_of(run, scheduler).state == "STARTING"


def test_an_attempt_that_nobody_submitted_does_not_look_like_the_end_of_the_run(
    runs: Path, scheduler: FakeScheduler
) -> None:
    run = failed(runs, scheduler)
    driver(run, scheduler, "nccl_timeout", "RETRY", **{KILL_AFTER: BEFORE_SBATCH[-1]}).communicate(timeout=180)
    abandon(run.attempt(2), NEVER_SUBMITTED)
    status = status_of(run, scheduler)
    assert (status.state, status.final) == ("RETRYING", False)
    assert "submitted" in [drive(run, scheduler, "nccl_timeout", "RETRY").kind for _ in range(2)]


@pytest.mark.parametrize("step", AFTER_SBATCH)
def test_killed_after_sbatch_nothing_is_doubled(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    run = failed(runs, scheduler)
    killed = driver(run, scheduler, "nccl_timeout", "RETRY", **{KILL_AFTER: step})
    killed.communicate(timeout=180)

    moves = [drive(run, scheduler, "nccl_timeout", "RETRY").kind for _ in range(3)]

    assert "submitted" not in moves
    assert trained(scheduler) == ["2"]


@pytest.mark.parametrize("step", BEFORE_SBATCH)
def test_a_frozen_driver_that_wakes_up_later_changes_nothing(runs: Path, scheduler: FakeScheduler, step: str) -> None:
    run = failed(runs, scheduler)
    frozen = driver(run, scheduler, "nccl_timeout", "RETRY", **{STOP_AFTER: step})
    assert os.WIFSTOPPED(os.waitpid(frozen.pid, os.WUNTRACED)[1])
    now = scheduler.clock()
    scheduler.clock = Clock(now + GIVE_UP_S + 1)
    moves = [drive(run, scheduler, "nccl_timeout", "RETRY").kind for _ in range(2)]
    assert "submitted" in moves, moves

    frozen.send_signal(signal.SIGCONT)
    frozen.communicate(timeout=180)

    assert len(trained(scheduler)) == 1


@pytest.mark.parametrize(("job", "continues"), [("1", True), ("2", False)], ids=["over", "running"])
@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=[pytest.mark.slow] if number else []) for number, step in enumerate(BEFORE_SBATCH)],
)
def test_a_driver_is_gone_with_the_job_that_it_runs_in(
    runs: Path, scheduler: FakeScheduler, step: str, job: str, continues: bool
) -> None:
    """The job's own hook, say, on a node that died: no other machine can look at its processes."""
    run = failed(runs, scheduler)
    _, _, other = submit_new(prepared(runs), scheduler)
    assert other == "2"
    inside = {"SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1"}
    frozen = driver(run, scheduler, "nccl_timeout", "RETRY", **{STOP_AFTER: step}, **inside)
    assert os.WIFSTOPPED(os.waitpid(frozen.pid, os.WUNTRACED)[1])
    began = len(run.attempts()) == 2
    scheduler.clock = Clock(scheduler.clock() + GRACE_S + 1)

    moves = [drive(run, scheduler, "nccl_timeout", "RETRY").kind for _ in range(2)]

    assert ("submitted" in moves) == (continues or not began), moves
    frozen.send_signal(signal.SIGCONT)
    frozen.communicate(timeout=180)
    assert len(set(trained(scheduler)) - {other}) == 1


def test_a_cancel_while_the_scheduler_was_away_is_carried_out_by_the_next_driver(
    runs: Path, scheduler: FakeScheduler
) -> None:
    recovery_plan = RetryPlan(nodes=2, least_nodes=2, partition="gpu")
    data = {"scheduler": "slurm", "recovery": recovery_plan}
    run, _, job_id = submit_new(prepared(runs, plan=data, secrets={}), scheduler)
    scheduler.start(job_id)
    scheduler.fault = "away"
    with pytest.raises(Unreachable):
        cancel_run(run, scheduler)
    scheduler.fault = ""

    move = drive(run, scheduler, "filesystem_error", "RETRY")

    assert (move.kind, scheduler.job(job_id)["state"]) == ("waiting", "CANCELLED")
    assert f"cancelled job {job_id}" in move.words
    drive(run, scheduler, "filesystem_error", "RETRY")
    assert len(run.attempts()) == 1


@pytest.mark.parametrize(
    ("state", "inside", "kind"), [("FAILED", False, "ended"), ("TIMEOUT", True, None), ("TIMEOUT", False, None)]
)
def test_nothing_follows_a_run_that_a_person_cancelled_even_if_its_job_ended_before_that_arrived(
    runs: Path, scheduler: FakeScheduler, state: str, *, inside: bool, kind: str | None
) -> None:
    run = failed(runs, scheduler)
    scheduler.fault = "refuse"
    run.attempts()[-1].cancel.write_text(json.dumps({"time": scheduler.clock(), "by": "alice", "host": "h"}))
    scheduler.set("1", state=state)
    told = ("time_limit", "CONTINUE") if state == "TIMEOUT" else ("filesystem_error", "RETRY")

    move = drive(run, scheduler, *told, inside=inside)  # type: ignore[arg-type]

    assert move.kind == (kind or move.kind)
    assert len(run.attempts()) == 1


def test_a_report_that_does_not_reach_the_team_is_named(runs: Path, scheduler: FakeScheduler, tmp_path: Path) -> None:
    (tmp_path / "team").write_text("a file where the folder should be")
    run = failed(runs, scheduler, ledger=str(tmp_path / "team"))

    move = drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1")

    assert move.kind == "submitted"
    assert f"cannot write {tmp_path}/team/test" in move.words
    assert [one.node for one in NodeHealthStore("test", str(tmp_path / "team")).standing()] == ["n1"], "kept here"


def test_our_own_exclusion_is_dropped_where_it_leaves_too_few_nodes(runs: Path, scheduler: FakeScheduler) -> None:
    run = failed(runs, scheduler)
    scheduler.fault = "too few"
    assert drive(run, scheduler, "gpu_hardware", "RETRY_ELSEWHERE", "n1").kind == "waiting"
    assert options(run) == ["--exclude=n1"]
    scheduler.fault = ""

    move = drive(run, scheduler, "unknown", "STOP")

    assert move.kind == "submitted", move
    assert "n1 is no longer excluded" in move.words
    assert not [option for option in options(run) if option.startswith("--exclude")]
    assert status_of(run, scheduler).attempts[-1].overrides.by_name() == {"readmitted": ("n1",)}
    assert trained(scheduler) == ["2"]
