"""Each way in which a job can end, or never start: the run's state, the exit code of --wait, and what is said."""

from __future__ import annotations

import signal

from tests.cluster.faults import PATIENCE_S
from tests.slurm.user import PROFILES, User

SLEEP = "name: sleep\nretry: 1\nlauncher: srun\ncommand: sleep 300\ntime: 10\n"
DONE = (
    "name: done\nlauncher: srun\nnodes: 2\nprocesses_per_node: 2\ncommand: sh -c 'echo rank $$RANK of $$WORLD_SIZE'\n"
)


def test_without_accounting_everything_still_works(user_without_accounting: User) -> None:
    user = user_without_accounting
    done = user.launch("submit", user.job(DONE), "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert user.status()["state"] == "COMPLETED"
    done = user.launch("submit", user.job(DONE.replace("sh -c", "sh -x -c").replace("echo", "exit 9; echo")), "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    assert user.status()["state"] == "FAILED"


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
    profile = "requeueing"
    text = (PROFILES / "testcluster.yaml").read_text().replace("name: testcluster", f"name: {profile}")
    user.job(text.replace("scheduler: slurm", "scheduler: {type: slurm, requeue: scheduler}"), f"sites/{profile}.yaml")
    marker = user.home / "trained"
    body = f'echo $SLURM_RESTART_COUNT >>{marker}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 300'
    run = user.submit(f"name: again\nsite: {profile}\nlauncher: srun\ncommand: [sh, -c, '{body}']\n", "--site", profile)
    user.until(run["run"], "RUNNING", "STARTING")
    assert user.cluster.run(["scontrol", "requeue", run["job_id"]]).returncode == 0
    status = user.until(run["run"], "PENDING", "RETRYING", "STUCK")
    assert status["state"] == "PENDING", status
    status = user.until(run["run"], "COMPLETED", "FAILED")
    assert status["state"] == "COMPLETED", status
    assert [attempt["job_id"] for attempt in status["attempts"]] == [run["job_id"]] * 2
    assert user.trainings(marker) == ["", "1"]


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


def test_interrupting_the_wait_leaves_the_job_running(user: User) -> None:
    waiting = user.popen("submit", user.job(SLEEP), "--wait")
    assert waiting.stderr is not None
    said = ""
    while "running" not in said and "starting" not in said:  # it follows the run
        line = waiting.stderr.readline()
        assert line, said
        said += line
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 130, out + err
    assert "hpc-launch watch" in out + err
    assert user.status()["state"] in {"RUNNING", "STARTING"}
    user.launch("cancel", "@last")
