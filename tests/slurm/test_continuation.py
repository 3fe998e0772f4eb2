"""A training that is warned, saves, and goes on: on a real Slurm, by each launcher and each kind of warning."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.marks import prove
from tests.slurm.user import User

COUNTING = f"""
name: counting
nodes: 2
processes_per_node: 2
time: 00:10:00
script: {REPOSITORY}/tests/trainings/counting.py
args: {{folder: "${{run.dir}}/saved"}}
progress: {{step: 'step (\\d+)/(\\d+)'}}
retry: 1
checkpoint:
  signal_before: 40s
  dir: ${{run.dir}}/saved
  pattern: 'step-(\\d+)'
  complete: [state.json]
  resume: {{args: {{from: "${{checkpoint.path}}"}}}}
drill: {{after: 1s}}
"""

pytestmark = pytest.mark.torch("deepspeed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "warning"),
    [
        ("torchrun", "USR1"),
        prove("deepspeed", "TERM"),
        prove("srun", "USR2"),
        prove("torchrun", "file"),
    ],
)
def test_each_warning_reaches_the_training_and_no_launcher(launcher: str, warning: str, user: User) -> None:
    listen = "hook" if warning == "file" else warning
    options = [f"launcher={launcher}", f"checkpoint.warn={warning}", f"args.listen={listen}"]

    done = user.launch("drill", user.job(COUNTING), "--json", *(f"--set={option}" for option in options))

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["saved"], found["resumed"]) == (True, True)
    assert found["resumed_at_step"] == found["checkpoint_step"] + 1
    first = user.status(found["run"])["attempts"][0]
    assert (first["state"], first["exit_code"]) == ("COMPLETED", 0)
    log = user.launch("logs", found["run"], "--attempt", "1").stdout
    assert len(re.findall(r"rank \d stops at step", log)) == 4
    assert len(re.findall(rf"sent SIG{warning} to the training: processes \d+", log)) == (
        0 if warning == "file" else 4 if launcher == "srun" else 2
    )


@pytest.mark.prove
@pytest.mark.slow
def test_a_drill_tells_where_a_preemption_gives_no_warning(user: User) -> None:
    """proctrack/linuxproc sends the SIGTERM to torchrun as well (seen with 22.05)."""
    done = user.launch("drill", user.job(COUNTING), "--preempt", "--set", "args.listen=hook")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "no checkpoint appeared" in done.stdout
    assert "here a preemption gives no warning" in done.stdout


@pytest.mark.slow
def test_a_torn_checkpoint_falls_back_to_the_one_before(user: User) -> None:
    sets = ["--set=launcher=srun", "--set=args.every=5", "--set=args.steps=12", "--set=args.pause=0", "--set=nodes=1"]
    done = user.launch("submit", user.job(COUNTING), "--json", "--wait", *sets)
    run = Path(json.loads(done.stdout)["folder"])
    user.cluster.write(run / "saved" / "step-10" / "state.json", "")

    done = user.launch("resubmit", "@last", "--wait", "--yes")

    assert done.returncode == 0, done.stderr
    log = user.launch("logs", "@last").stdout
    assert "step 6/12" in log
    assert "step 5/12" not in log
    batch = (run / "attempts" / "002" / "batch.log").read_text()
    assert "skipped step-10: this checkpoint is incomplete" in batch
    assert json.loads((run / "attempts" / "002" / "end.json").read_text())["resumed_step"] == 5


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "first"), [("torchrun", "guard.sh"), prove("deepspeed", "node.sh")])
def test_a_sigterm_to_the_tasks_alone_is_taken_for_a_warning(user: User, launcher: str, first: str) -> None:
    """As a preemption with a grace time does it under proctrack/cgroup: the batch shell gets none."""
    sets = [f"--set=launcher={launcher}", "--set=args.listen=hook", "--set=retry.max_attempts=3"]
    answer = user.submit(COUNTING, *sets)
    run = Path(answer["folder"])
    user.until("@last", "RUNNING")
    node = user.status()["attempts"][0]["nodes"][0]
    wait_until(lambda: (user.status()["progress"]["step"] or 0) >= 3, every=1)
    kill = f"pkill -TERM -u alice -f '^[^ ]*bash {run}/attempts/001/{first}'"
    user.cluster.node_exec(node, ["sh", "-c", kill])

    wait_until(lambda: len(user.status()["attempts"]) >= 2, every=1)
    user.launch("cancel", "@last")
    attempt = user.status()["attempts"][0]
    assert (attempt["class"], attempt["verdict"]) == ("preempted", "CONTINUE")
    end = json.loads((run / "attempts" / "001" / "end.json").read_text())
    assert (end["exit_code"], end["signal"], end["warned_by"]) == (0, "", "TERM")
    assert end["saved_step"] >= 3
