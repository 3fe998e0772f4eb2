"""The local scheduler, with real processes: ends, limits, cancels, and a supervisor that is shot."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent.job_processes import start_of
from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.schedulers.local import local_jobs, supervisor
from hpc_launch.schedulers.local.local_scheduler import LocalScheduler
from hpc_launch.schedulers.local.supervisor import descendants, processes_of_job
from hpc_launch.schedulers.scheduler import JobRecord, Submission
from tests.busy import patience

Submit = Callable[..., tuple[str, Path]]


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalScheduler:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return LocalScheduler()


@pytest.fixture
def submit(scheduler: LocalScheduler, tmp_path: Path) -> Submit:
    def start(body: str, *, name: str = "job.t0.1", plan: dict[str, float | None] | None = None) -> tuple[str, Path]:
        folder = tmp_path / f"a b'{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        limits: dict[str, Any] = dict(plan or {})
        submission = Submission(f"#!/bin/bash\n{body}\n", folder, name, environment={"SECRET": "s3cret"}, **limits)
        return scheduler.submit(submission), folder

    return start


def ended(scheduler: LocalScheduler, job_id: str, timeout: float = 150) -> JobRecord:
    end = time.monotonic() + timeout
    while not (record := scheduler.query([job_id])[job_id]).ended_for_good:
        assert time.monotonic() < end, record
        time.sleep(0.02)
    return record


def lasted(record: JobRecord) -> float:
    """How long a job ran."""
    assert record.started is not None
    assert record.ended is not None
    return record.ended - record.started


def wait_for(path: Path, timeout: float = 150) -> str:
    end = time.monotonic() + timeout
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.02)
    return path.read_text()


def test_a_job_runs_to_its_end(scheduler: LocalScheduler, submit: Submit) -> None:
    job, folder = submit(
        'echo "$1|$HPC_LAUNCH_JOB_ID|$SECRET"; echo err >&2; read -r line || echo no input; ps -o sid= $$'
    )
    record = ended(scheduler, job)
    assert (record.state, record.exit_code, record.signal, record.source) == ("COMPLETED", 0, None, "local")
    assert record.name == "job.t0.1"
    assert lasted(record) >= 0
    assert record.submitted is not None
    assert record.submitted <= (record.started or 0)
    lines = (folder / "batch.log").read_text().splitlines()
    assert lines[:3] == [f"{folder}|{job}|s3cret", "err", "no input"]
    assert int(lines[3]) != os.getsid(0)
    assert "s3cret" not in (folder / "local.json").read_text()
    assert int(job.removeprefix("local-")) > 0


def test_the_log_is_appended_to(scheduler: LocalScheduler, submit: Submit, tmp_path: Path) -> None:
    job, folder = submit("echo one")
    ended(scheduler, job)
    again = scheduler.submit(Submission("echo two\n", folder, "job.t0.1"))
    ended(scheduler, again)
    assert (folder / "batch.log").read_text() == "one\ntwo\n"
    # The folder speaks of the second job only; of the first one nothing is made up.
    assert scheduler.query([job, again]).keys() == {again}


@pytest.mark.parametrize(("body", "code", "number"), [("exit 7", 7, None), ("kill -9 $$", None, 9)])
def test_a_failure_says_how(
    scheduler: LocalScheduler, submit: Submit, body: str, code: int | None, number: int | None
) -> None:
    record = ended(scheduler, submit(body)[0])
    assert (record.state, record.exit_code, record.signal) == ("FAILED", code, number)


def test_the_warning_goes_to_the_batch_shell_alone(scheduler: LocalScheduler, submit: Submit) -> None:
    body = """
    trap 'echo warned $((SECONDS))' USR1
    trap 'echo termed $((SECONDS)); exit 0' TERM
    python3 -c 'import time; time.sleep(60)' & child=$!
    while :; do wait "$child"; kill -0 "$child" 2>/dev/null || { echo child died; break; }; done
    """
    job, folder = submit(body, plan={"time_limit_s": 2.5, "signal_before_s": 1.5})
    record = ended(scheduler, job)
    assert record.state == "TIMEOUT"
    assert 2.4 < lasted(record) < patience(8)
    first, second, *rest = (folder / "batch.log").read_text().split("\n")
    warned, termed = (int(line.removeprefix(word)) for line, word in ((first, "warned "), (second, "termed ")))
    assert 0 <= warned <= patience(1)
    assert 2 <= termed <= patience(3)
    assert not processes_of_job(job, str(folder)), rest


@pytest.mark.slow
def test_a_stubborn_job_is_killed_at_its_limit(submit: Submit, scheduler: LocalScheduler) -> None:
    # `setsid` as torchrun does with its workers; nobody here ends by SIGTERM.
    job, folder = submit(
        "trap '' TERM; setsid sleep 300 & (setsid setsid sleep 301 &) ; echo up > \"$1/up\"; sleep 300 & wait; wait",
        plan={"time_limit_s": 0.5, "signal_before_s": None},
    )
    wait_for(folder / "up")
    assert len(processes_of_job(job, str(folder))) >= 4
    record = ended(scheduler, job)
    assert record.state == "TIMEOUT"
    assert record.signal == signal.SIGKILL
    assert supervisor.KILL_WAIT_S <= lasted(record) < supervisor.KILL_WAIT_S + patience(5)
    assert not processes_of_job(job, str(folder))


def test_a_cancel_leaves_no_process(scheduler: LocalScheduler, submit: Submit) -> None:
    job, folder = submit('setsid sleep 300 & (sleep 301 &) ; echo up > "$1/up"; sleep 300 & wait')
    wait_for(folder / "up")
    scheduler.cancel(job)
    record = ended(scheduler, job)
    assert record.state == "CANCELLED"
    assert not processes_of_job(job, str(folder))
    scheduler.cancel(job)
    scheduler.cancel("local-999")
    assert scheduler.query([job])[job].state == "CANCELLED"


def test_what_the_script_leaves_behind_is_ended(scheduler: LocalScheduler, submit: Submit) -> None:
    job, folder = submit("setsid sleep 300 & exit 0")
    assert ended(scheduler, job).state == "COMPLETED"
    assert not processes_of_job(job, str(folder))
    assert re.search(r"ends what the job left behind: \d+ \(sleep\)\n", (folder / "batch.log").read_text())


def test_a_killed_supervisor_is_noticed_and_its_job_ended(scheduler: LocalScheduler, submit: Submit) -> None:
    job, folder = submit("trap '' TERM; setsid sleep 300 & echo up > \"$1/up\"; sleep 300")
    wait_for(folder / "up")
    pid = json.loads((folder / "local.json").read_text())["pid"]
    assert len(descendants(pid)) >= 2
    os.kill(pid, signal.SIGKILL)
    record = ended(scheduler, job)
    assert record.state == "NODE_FAIL"
    assert record.reason is not None
    assert "was killed" in record.reason
    end = time.monotonic() + 5
    while processes_of_job(job, str(folder)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not processes_of_job(job, str(folder))
    assert scheduler.query([job])[job].state == "NODE_FAIL"


def test_a_number_used_again_is_not_the_job(scheduler: LocalScheduler, submit: Submit) -> None:
    job, folder = submit("exit 0")
    ended(scheduler, job)
    value = json.loads((folder / "local.json").read_text())
    value |= {"state": "RUNNING", "pid": os.getpid(), "pid_start": (start_of(os.getpid()) or 0) + 1}
    (folder / "local.json").write_text(json.dumps(value))
    scheduler.cancel(job)  # must not end this very process
    assert scheduler.query([job])[job].state == "NODE_FAIL"


def test_a_job_of_another_host_is_reported_as_last_seen(scheduler: LocalScheduler, submit: Submit) -> None:
    job, folder = submit("exit 0")
    ended(scheduler, job)
    value = json.loads((folder / "local.json").read_text()) | {"state": "RUNNING", "host": "elsewhere"}
    (folder / "local.json").write_text(json.dumps(value))
    record = scheduler.query([job])[job]
    assert record.state == "RUNNING"
    assert record.reason is not None
    assert "on host elsewhere" in record.reason
    with pytest.raises(Unreachable, match="elsewhere"):
        scheduler.cancel(job)


@pytest.mark.slow
def test_a_job_in_another_pid_namespace_is_neither_lost_nor_cancelled(
    submit: Submit, scheduler: LocalScheduler
) -> None:
    """As from a container with the host's name and the user's home folder."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not create pid namespaces")
    job, folder = submit("sleep 600")
    wait_for(folder / "local.json")
    program = (
        "from hpc_launch.schedulers.local.local_scheduler import LocalScheduler as S\n"
        f"print(S().query([{job!r}])[{job!r}].state)\n"
        f"S().cancel({job!r})"
    )
    done = subprocess.run([*apart, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["RUNNING"]
    assert f"{job} runs on" in done.stderr
    assert "outside this container" in done.stderr
    assert scheduler.query([job])[job].state == "RUNNING"
    scheduler.cancel(job)
    assert ended(scheduler, job).state == "CANCELLED"


def test_after_a_reboot_a_job_is_lost(scheduler: LocalScheduler, submit: Submit) -> None:
    job, folder = submit("exit 0")
    ended(scheduler, job)
    value = json.loads((folder / "local.json").read_text()) | {"state": "RUNNING", "space": "an-earlier-boot:1"}
    for machine, state in (("another", "RUNNING"), (value["machine"], "NODE_FAIL" if value["machine"] else "RUNNING")):
        (folder / "local.json").write_text(json.dumps(value | {"machine": machine}))
        assert scheduler.query([job])[job].state == state


def test_a_job_of_another_state_folder_is_found_by_its_attempt(
    scheduler: LocalScheduler, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder = submit("sleep 600")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert scheduler.query([job]) == {}
    local_jobs.adopt(job, folder)
    assert scheduler.query([job])[job].state in ("PENDING", "RUNNING")
    scheduler.cancel(job)
    assert ended(scheduler, job).state == "CANCELLED"


def test_jobs_are_found_by_name(scheduler: LocalScheduler, submit: Submit) -> None:
    jobs = [submit("exit 0", name=name)[0] for name in ("a.t.1", "b.t.1", "a.t.1")]
    assert {record.job_id for record in scheduler.find("a.t.1")} == {jobs[0], jobs[2]}
    assert scheduler.find("a.t") == []
    assert len(set(jobs)) == 3


def test_a_submission_under_way_is_not_called_absent(scheduler: LocalScheduler, tmp_path: Path) -> None:
    entry = local_jobs.register("a.t.1", tmp_path)
    with pytest.raises(Unreachable, match="being submitted"):
        scheduler.find("a.t.1")
    path = tmp_path / "state" / "hpc-launch" / "local" / f"{entry.job_id}.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"submitter": 999999999}))
    with pytest.raises(Unreachable, match="being submitted"):
        scheduler.find("a.t.1")
    path.write_text(
        json.dumps(value | {"submitter": 999999999, "submitted": value["submitted"] - local_jobs.STARTING_S})
    )
    assert scheduler.find("a.t.1") == []


def test_a_folder_that_cannot_be_written_is_a_refusal(scheduler: LocalScheduler, tmp_path: Path) -> None:
    with pytest.raises(SubmitRefused, match="cannot prepare"):
        scheduler.submit(Submission("true\n", tmp_path / "missing", "a.t.1"))


def test_a_job_may_submit_the_next_one(scheduler: LocalScheduler, submit: Submit, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    program = (
        "from pathlib import Path; from hpc_launch.schedulers.scheduler import scheduler_for; "
        "from hpc_launch.schedulers.scheduler import Submission; "
        f"print(scheduler_for('local').submit(Submission('sleep 1; echo done\\n', Path({str(second)!r}), 'n.t.2')))"
    )
    job, folder = submit(f"cd {Path.cwd()}; {sys.executable} -c {program!r}")
    assert ended(scheduler, job).state == "COMPLETED", (folder / "batch.log").read_text()
    following = (folder / "batch.log").read_text().strip()
    assert ended(scheduler, following).state == "COMPLETED"
    assert (second / "batch.log").read_text() == "done\n"


def test_the_supervisor_imports_nothing_heavy() -> None:
    program = (
        "import sys; before = set(sys.modules); import hpc_launch.schedulers.local.supervisor; "
        "print(*sorted(m for m in sys.modules if m.startswith('hpc_launch')), "
        "*sorted({'click', 'pydantic', 'msgspec', 'jinja2', 'submitit', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = "agent agent.job_processes schedulers schedulers.job_files schedulers.local".split()
    expected = ["hpc_launch", *(f"hpc_launch.{name}" for name in names), "hpc_launch.schedulers.local.supervisor"]
    assert done.stdout.split() == expected
