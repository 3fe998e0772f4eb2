"""Each way in which a job can end, or never start: the run's state, the exit code of --wait, and what is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

SLEEP = "name: sleep\nretry: 1\nlauncher: srun\ncommand: sleep 300\ntime: 10\n"
DONE = (
    "name: done\nlauncher: srun\nnodes: 2\nprocesses_per_node: 2\ncommand: sh -c 'echo rank $$RANK of $$WORLD_SIZE'\n"
)


def test_without_accounting_everything_still_works(user_without_accounting: User) -> None:
    user = user_without_accounting
    user.completed(user.job(DONE))
    assert user.status()["state"] == "COMPLETED"
    done = user.launch("submit", user.job(DONE.replace("sh -c", "sh -x -c").replace("echo", "exit 9; echo")), "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    assert user.status()["state"] == "FAILED"


@pytest.mark.prove  # a job without a node is stuck, too
def test_a_held_job_is_stuck_and_says_how_to_go_on(user: User) -> None:
    job = user.job(SLEEP + "sbatch: {hold: true}\n")
    done = user.launch("submit", job, "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    status = user.status()
    assert status["state"] == "STUCK"
    assert "release" in done.stdout + done.stderr
    why = user.launch("why", "@last")
    assert why.returncode == 1
    assert why.stdout.startswith("STUCK\n  reason     JobHeldUser")
    assert user.launch("cancel", "@last").returncode == 0
    user.until("@last", "CANCELLED")


def test_a_requeued_job_is_a_second_attempt_of_the_same_run(user: User) -> None:
    user.site("", ("scheduler: slurm", "scheduler: {type: slurm, requeue: scheduler}"))
    body = f'echo $SLURM_RESTART_COUNT >>{user.marker}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 300'
    run = user.submit(f"name: again\nlauncher: srun\ncommand: [sh, -c, '{body}']\n")
    # A job can be RUNNING before its script runs: the first attempt has to have trained.
    wait_until(lambda: user.trainings() == [""])
    assert user.cluster.run(["scontrol", "requeue", run["job_id"]]).returncode == 0
    status = user.until(run["run"], "PENDING", "RETRYING", "STUCK")
    assert status["state"] == "PENDING", status
    status = user.until(run["run"], "COMPLETED", "FAILED")
    assert status["state"] == "COMPLETED", status
    assert [attempt["job_id"] for attempt in status["attempts"]] == [run["job_id"]] * 2
    assert user.trainings() == ["", "1"]


def test_a_node_that_cannot_start_the_job_leaves_it_stuck(user_in_trouble: User) -> None:
    user = user_in_trouble
    for node in ("n1", "n2", "n3", "n4"):
        user.cluster.fail_prolog(node)
    try:
        done = user.launch("submit", user.job(SLEEP), "--wait")
        status = user.status()
    finally:
        user.cluster.restore()
    assert done.returncode == 1, done.stdout + done.stderr
    assert status["state"] == "FAILED", status
    assert "before its script began" in status["reason"]


@pytest.mark.prove  # the node check's run continues elsewhere, too
def test_the_next_attempt_keeps_off_a_node(user: User) -> None:
    run = user.submit("name: fails\nlauncher: srun\ncommand: 'false'\n")["run"]
    user.until(run, "FAILED")
    first = user.status(run)["attempts"][0]["nodes"]
    done = user.launch("resubmit", run, "--exclude", first[0], "--set", "command=true", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    status = user.status(run)
    assert [attempt["state"] for attempt in status["attempts"]] == ["FAILED", "COMPLETED"]
    assert status["attempts"][1]["nodes"] != first
    assert status["attempts"][1]["overrides"] == {"set": ["command=true"], "exclude": first}
    assert user.launch("resubmit", run, "--yes").returncode == 0, "an ended run may be tried again"


# --- What `why` says of a fault: who was first, whatever the job's own state says ---

TWO_RANKS = (
    "name: {}\nlauncher: srun\nnodes: 2\nprocesses_per_node: 1\nretry: {{max_attempts: 1}}\ncommand: sh -c '{}'\n"
)


def why(user: User, name: str, body: str) -> dict[str, Any]:
    job = body if body.startswith("name:") else TWO_RANKS.format(name, body)
    user.launch("submit", user.job(job), "--wait")
    done = user.launch("why", name, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.prove
def test_one_rank_ends_with_a_code_and_the_others_are_ended(user: User) -> None:
    """The step's code is that of the bystander that srun ended."""
    found = why(user, "seven", 'if [ "$RANK" = 1 ]; then exit 7; fi; sleep 60')
    assert (found["class"], found["first_failure"]["rank"]) == ("user_code_error", 1), found
    assert "exit code 7" in found["evidence"][-1]["text"]


@pytest.mark.prove  # the grid kills ranks, too
def test_one_rank_is_killed_from_outside(user: User) -> None:
    """Nothing counted it as a kill for memory, so it is none."""
    found = why(user, "killed", 'if [ "$RANK" = 1 ]; then kill -KILL $$; fi; sleep 60')
    assert (found["class"], found["first_failure"]["rank"]) == ("segfault_or_abort", 1), found
    assert "retry; something outside" in found["advice"]
    assert (found["verdict"], "retry.max_attempts is 1" in found["advice"]) == ("STOP", True), found


def test_a_program_that_is_not_there(user: User) -> None:
    found = why(user, "nowhere", "no-such-program-of-anybody")
    assert (found["class"], found["verdict"]) == ("config_error", "STOP"), found


def test_a_node_without_the_interpreter_is_named(user: User) -> None:
    venv = f"/tmp/venv-{user.home.name}"
    make = ["python3", "-m", "venv", "--without-pip", venv]
    assert user.cluster.run(make).returncode == 0
    for node in user.cluster.nodes:
        assert user.cluster.node_exec(node, make, user=user.cluster.user).returncode == 0
    bad = user.cluster.nodes[2]
    user.cluster.node_exec(bad, ["rm", "-r", venv])
    job = f"name: no-venv\nlauncher: srun\nnodes: {len(user.cluster.nodes)}\ncpus_per_node: 1\nretry: 1\n"
    command = "command: [python3, -c, 'import sys; print(sys.prefix)']\n"

    found = why(user, "no-venv", f"{job}{command}environment: {{venv: {venv}}}\n")

    assert found["first_failure"]["node"] == bad, found
    assert any(f"{bad}: {venv}/bin/python3 is missing" in quote["text"] for quote in found["evidence"]), found
    assert json.loads(user.launch("nodes", "list", "--json").stdout) == []
