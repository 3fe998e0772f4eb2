"""What a successor does first: without Python, it ends at once where there is nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.plan.recorded_parts import RetryPlan
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.submitting.successor_job import send_successor
from hpc_launch.schedulers.scheduler import Submission
from tests.runs.fake import FakeScheduler
from tests.runs.samples import prepared

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2   # job.yaml:3\n#SBATCH --signal=B:USR1@60 # job.yaml:4\ntrue\n"
AFTER = 'echo "driver: $*"; [ ! -e "$1/../../next" ] || cp -r "$1/../../next" "$1/../002"\n'
ENDED: dict[str, Any] = {"job_id": "1", "restart": 0, "exit_code": 1, "signal": "", "warned": None}


class Kept(FakeScheduler):
    """Keeps what was submitted last."""

    def submit(self, submission: Submission) -> str:
        self.submission = submission
        return super().submit(submission)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run whose attempt ended with an error, in job 1, and a driver that prepares attempt 2 where `next` is there."""
    run = RunFolder(tmp_path / "it's a run")
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.job.write_text(json.dumps({"job_id": "1"}))
    attempt.claim.write_text("1\n")
    attempt.end.write_text(json.dumps(ENDED))
    run.after.write_text(AFTER)
    return run


def script(run: RunFolder, scheduler: Kept) -> str:
    plan = {"recovery": RetryPlan(successor=True)}
    options = ("--exclude=n3", "--begin=now+60", "--dependency=afterany:0")
    send_successor(run.attempt(1), prepared(run.path.parent, plan=plan, script=SCRIPT, options=options), scheduler, "1")
    assert scheduler.submission.options == ("--exclude=n3", "--dependency=afterany:1")
    return scheduler.submission.script


@pytest.fixture
def text(run: RunFolder, tmp_path: Path) -> str:
    return script(run, Kept(tmp_path / "scheduler"))


def start(text: str, run: RunFolder) -> str:
    """The last line that the script writes to its log."""
    own = run.attempt(1).successor_folder
    with (own / "batch.log").open("a") as log:
        command = ["bash", "-c", text, "successor", str(own)]
        done = subprocess.run(command, env={**os.environ, "SLURM_JOB_ID": "2"}, stdout=log, stderr=log, check=False)
    assert done.returncode == 0
    return (own / "batch.log").read_text().rpartition("] ")[2].rstrip("\n")


def test_it_requests_what_the_attempt_did(text: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert lines == ["#SBATCH --nodes=2", "#SBATCH --signal=B:USR1@60"]


def test_it_asks_the_driver_and_ends_where_that_prepares_nothing(text: str, run: RunFolder) -> None:
    assert start(text, run).startswith("nothing to start in this job")
    hook = run.attempt(1).successor_folder / "hook.log"
    assert hook.read_text() == f"driver: {run.path}/attempts/001 --successor=1\n"
    assert not (run.path / "attempts" / "002").exists()


ENDS: dict[str, tuple[str, str, str]] = {
    "finished": ("attempts/001/end.json", json.dumps({**ENDED, "exit_code": 0}), "the run is finished"),
    "stopped": ("attempts/001/verdict.json", json.dumps({"action": "STOP"}, indent=2), "the run is over"),
    "cancelled": ("attempts/001/cancel.json", "{}", "the run was cancelled"),
    "another job": ("attempts/002/job.json", json.dumps({"job_id": "7"}), "the run continues in job 7"),
    "claimed": ("attempts/0010/claim", "8\n", "the run continues in job 8"),
    "blocked": ("attempts/002/claim", "void cancelled by alice\n", "the run was cancelled"),
}


@pytest.mark.parametrize("case", ENDS)
def test_it_ends_at_once_where_the_run_is(text: str, run: RunFolder, case: str) -> None:
    name, content, words = ENDS[case]
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).write_text(content)
    assert start(text, run) == words


def test_it_ends_at_once_where_no_driver_can_run(text: str, run: RunFolder) -> None:
    run.after.unlink()
    assert start(text, run) == "no monitor can run here"


@pytest.mark.parametrize("shebang", ["#!/bin/bash", "#!/bin/bash -l"])
def test_it_becomes_the_script_of_the_attempt_that_the_driver_prepared(text: str, run: RunFolder, shebang: str) -> None:
    prepared = run.path / "next"
    prepared.mkdir()
    (prepared / "job.json").write_text('{"job_id": "2"}')
    (prepared / "script.sh").write_text(f'{shebang}\nshopt -q login_shell && echo login\necho "in $1, $#"\n')

    start(text, run)

    words = ["login"] * shebang.endswith("-l") + [f"in {run.path}/attempts/002, 1"]
    assert run.attempt(2).batch_log.read_text().splitlines() == words


def test_after_a_requeue_it_goes_on_as_the_attempt_that_it_had_started(text: str, run: RunFolder) -> None:
    for number in (2, 3):  # the script of the third one, which Slurm's first requeue began, is that of the second
        attempt = run.attempt(number)
        attempt.path.mkdir()
        attempt.job.write_text('{"job_id": "2"}')
    run.attempt(2).script.write_text("#!/bin/bash\necho again, $1\n")
    start(text, run)
    assert run.attempt(2).batch_log.read_text() == f"again, {run.path}/attempts/002\n"
