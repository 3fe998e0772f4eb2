"""What every scheduler does alike, with real jobs: those of hpc-launch, and that of the package in examples/plugin."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpc_launch.base import errors
from hpc_launch.schedulers.scheduler import JobRecord, QueueLimits, Scheduler, Submission, scheduler_for
from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.marks import prove
from tests.plugin_package import install_example, on_path
from tests.schedulers.login_node import Failed, LoginNode


@dataclass
class Desk:
    """A user's place to submit from. Each call may be that of another process."""

    open: Callable[[], Scheduler]
    folder: Path
    jobs: list[str] = field(default_factory=list)

    def attempt(self) -> Path:
        """A fresh attempt folder; a space and a quote are in its name on purpose."""
        folder = self.folder / f"a b'{len(self.jobs)}"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # the user of the cluster is another one
        return folder

    def submit(self, body: str, *, name: str = "job.t0.1", **more: float) -> tuple[str, Path]:
        folder = self.attempt()
        submission = Submission(f"#!/bin/bash\n{body}\n", folder, name, environment={"SECRET": "s3cret"}, **more)  # type: ignore[arg-type]
        self.jobs.append(self.open().submit(submission))
        return self.jobs[-1], folder

    def until(self, job: str, *states: str) -> JobRecord:
        end = time.monotonic() + patience(60)
        while (record := self.open().query([job], fresh=True).get(job)) is None or record.state not in states:
            assert time.monotonic() < end, record
            time.sleep(0.1)
        return record


class OnLoginNode(Scheduler):
    """Slurm's scheduler, each call of which is a process of its own on the login node of a cluster."""

    def __init__(self, login: LoginNode) -> None:
        self._login = login

    def submit(self, submission: Submission) -> str:
        text = submission.script.partition("\n")[2]
        limits = {} if submission.time_limit_s is None else {"time_limit_s": submission.time_limit_s}
        try:
            return self._login.submit(
                text, name=submission.job_name, folder=submission.folder, environment=submission.environment, **limits
            )
        except Failed as failed:
            raise getattr(errors, failed.kind)(str(failed), failed.hint) from failed

    def find(self, job_name: str) -> list[JobRecord]:
        return self._login.find(job_name)

    def query(self, job_ids: object, *, fresh: bool = False) -> dict[str, JobRecord]:
        return self._login.query(*list(job_ids), fresh=fresh)  # type: ignore[call-overload]

    def cancel(self, job_id: str) -> None:
        self._login.call("cancel", job_id=job_id)

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        self._login.call("warn", job_id=job_id, preempt=preempt)


SCHEDULERS = ["local", "spool", prove("slurm", also=pytest.mark.cluster)]
"""In `make test`, test_slurm.py has tests of the same kind."""


@pytest.fixture(params=SCHEDULERS)
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ExitStack() as stack:
        if request.param == "slurm":
            cluster: Cluster = request.getfixturevalue("cluster")
            home: Path = request.getfixturevalue("user_dir")
            desk = Desk(lambda: OnLoginNode(LoginNode(cluster, home)), home)
        else:
            stack.enter_context(on_path(install_example(tmp_path / "packages")))
            desk = Desk(lambda: scheduler_for(request.param), tmp_path)
        yield desk
        for job in desk.jobs:
            desk.open().cancel(job)


def test_a_job_runs_to_its_end(desk: Desk) -> None:
    job, folder = desk.submit('echo "$1|$SECRET"; echo err >&2; read -r line || echo no input; ps -o sid= $$')
    record = desk.until(job, "COMPLETED")
    assert (record.job_id, record.name, record.exit_code, record.signal) == (job, "job.t0.1", 0, None)
    assert record.submitted is not None
    assert record.started is not None
    assert record.ended is not None
    assert int(record.submitted) <= record.started <= record.ended <= record.as_of
    assert record.nodes
    lines = (folder / "batch.log").read_text().splitlines()
    assert lines[:3] == [f"{folder}|s3cret", "err", "no input"]
    assert int(lines[3]) != os.getsid(0)
    others = (path for path in folder.parent.rglob("*") if path.is_file() and path != folder / "batch.log")
    assert not [path for path in others if b"s3cret" in path.read_bytes()]


def test_a_failure_says_how(desk: Desk) -> None:
    record = desk.until(desk.submit("exit 7")[0], "FAILED")
    assert (record.exit_code, record.ended_for_good) == (7, True)


def test_a_warning_goes_to_the_script_alone(desk: Desk) -> None:
    body = """
    trap 'echo warned; exit 5' USR1
    python3 -c 'import time; print("up", flush=True); time.sleep(60)' & wait; wait; echo child died
    """
    job, folder = desk.submit(body)
    desk.until(job, "RUNNING")
    wait_for_line(folder, "up")
    desk.open().warn(job)
    assert desk.until(job, "FAILED").exit_code == 5
    assert (folder / "batch.log").read_text().splitlines() == ["up", "warned"]


def test_a_cancel_ends_a_job_and_again_is_no_error(desk: Desk) -> None:
    job, folder = desk.submit("trap 'echo told; exit 9' TERM; echo up; sleep 300 & wait")
    desk.until(job, "RUNNING")
    wait_for_line(folder, "up")
    scheduler = desk.open()
    scheduler.cancel(job)
    record = desk.until(job, "CANCELLED")
    assert record.ended is not None
    assert "told" in (folder / "batch.log").read_text()
    scheduler.cancel(job)
    assert scheduler.query([job])[job].state == "CANCELLED"


@pytest.mark.parametrize("desk", ["local", "spool"], indirect=True)  # Slurm's shortest limit is a minute
def test_a_job_is_warned_before_its_limit_and_ended_at_it(desk: Desk) -> None:
    body = "trap 'echo warned' USR1; trap 'echo told; exit 0' TERM; sleep 60 & wait; wait"
    job, folder = desk.submit(body, time_limit_s=4, signal_before_s=2)
    record = desk.until(job, "TIMEOUT")
    assert record.started is not None
    assert record.ended is not None
    assert 3 <= record.ended - record.started < patience(8)
    assert (folder / "batch.log").read_text().splitlines() == ["warned", "told"]


def test_jobs_are_found_by_their_whole_name(desk: Desk) -> None:
    ended = desk.submit("true", name="found.x1.1")[0]
    desk.until(ended, "COMPLETED")
    live = desk.submit("sleep 300", name="found.x1.1")[0]
    desk.submit("sleep 300", name="found.x1.12")
    assert {record.job_id for record in desk.open().find("found.x1.1")} == {ended, live}
    assert desk.open().find("found.x1") == []


@pytest.mark.parametrize("desk", ["spool"], indirect=True)
def test_an_earlier_job_is_waited_for_though_its_queue_starts_late(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, seen = tmp_path / "slow" / "setsid", tmp_path / "seen"
    slow.parent.mkdir()
    slow.write_text(
        f'#!/bin/sh\nmkdir {seen} || exec {shutil.which("setsid")} "$@"\nexec 3<&0\n(sleep 2; exec setsid "$@" <&3) &\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    early, late = (desk.submit("sleep 1")[0] for _ in range(2))
    desk.until(late, "COMPLETED")
    records = desk.open().query([early, late])
    assert records[early].state == "COMPLETED"
    assert (records[early].ended or 0) <= (records[late].started or 0)


@pytest.mark.parametrize("desk", ["spool"], indirect=True)
def test_jobs_end_with_their_folder(desk: Desk, tmp_path: Path) -> None:
    runs, waits = (desk.submit("sleep 300")[0] for _ in range(2))
    desk.until(runs, "RUNNING")
    desk.until(waits, "PENDING")
    shutil.rmtree(tmp_path / "state")
    mine = ["pgrep", "-f", f"queue.sh {tmp_path}"]
    wait_until(lambda: subprocess.run(mine, capture_output=True, check=False).returncode == 1)
    desk.jobs.clear()


def test_jobs_that_it_does_not_know_are_left_out(desk: Desk) -> None:
    job = desk.submit("true")[0]
    unknown = f"{job}9999"
    assert desk.open().query([job, unknown], fresh=True).keys() == {job}
    desk.open().cancel(unknown)


def test_a_folder_that_cannot_be_written_is_a_refusal(desk: Desk) -> None:
    with pytest.raises(errors.SubmitRefused):
        desk.open().submit(Submission("#!/bin/bash\ntrue\n", desk.folder / "missing", "lost.t0.1"))
    assert desk.open().find("lost.t0.1") == []


@pytest.mark.parametrize("desk", ["local", "spool"], indirect=True)
def test_what_it_cannot_do_it_says(desk: Desk) -> None:
    """Each optional method gives an answer of its kind, or Unreachable."""
    scheduler, nobody = desk.open(), (None, None, None)
    assert isinstance(scheduler.limits(*nobody), QueueLimits | None)
    assert scheduler.array_room(*nobody) is None
    assert scheduler.reservations(None) is None
    assert scheduler.pending_reasons(None) == {}
    assert set(scheduler.nodes(["nowhere"]).values()) <= {""}
    assert scheduler.preempted("1") is False
    assert scheduler.size(None) is None
    assert scheduler.cluster() is None
    with pytest.raises(errors.Unreachable):
        scheduler.warn("nothing-1", preempt=True)


def wait_for_line(folder: Path, line: str) -> None:
    end = time.monotonic() + patience(60)
    while line not in ((folder / "batch.log").read_text() if (folder / "batch.log").exists() else ""):
        assert time.monotonic() < end
        time.sleep(0.1)
