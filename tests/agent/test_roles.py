"""The roles of a job on this machine, as small scripts: who is named, what is restarted, how they end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent import program
from hpc_launch.agent.job_processes import environ_of, is_of_others
from tests.busy import patience
from tests.cluster.faults import wait_until

SPEC: dict[str, Any] = {
    "nodes": [[0, 1]], "ports": [], "port_range": 0, "ready": {}, "after": [], "ends": False, "restart": 0, "grace": 1,
}  # fmt: skip
BEGINS = 'export HPC_LAUNCH_ATTEMPT_DIR=$1; mkdir -p "$1/logs"; : >"$1/logs/node-0.log"; cd "$1"\n'
ENDS: dict[str, Any] = {"ends": True, "after": ["server"]}
SILENT = """\
import os, socket, time
server = socket.create_server(("", int(os.environ["ROLE_PORT"])))
time.sleep(60)
"""
"""Takes connections, and says nothing."""


class Job:
    """Roles with their scripts and keys, and what starts and watches them."""

    def __init__(self, folder: Path, **roles: tuple[str, dict[str, Any]]) -> None:
        """Start them."""
        self.folder, self.log = folder, folder / "batch.log"
        (folder / "roles").mkdir(parents=True)
        for name, (script, _) in roles.items():
            (folder / "roles" / f"{name}.sh").write_text(BEGINS + script)
        plan = {name: {**SPEC, "names": [name], **keys} for name, (_, keys) in roles.items()}
        (folder / "roles" / "plan.json").write_text(json.dumps({"roles": plan}))
        words = [sys.executable, *program("roles"), "local", str(folder), "n1", "n2", "n3"]
        # As in a job, a shell waits for it.
        line = f"{shlex.join(words)} & echo $! >{folder}/agent; trap 'kill -TERM $!' TERM; wait $!; wait $!"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(["bash", "-c", line], stdout=log, stderr=log)

    def end(self) -> int:
        """The exit code, once they have ended."""
        return self.process.wait(patience(20))

    @property
    def state(self) -> dict[str, Any]:
        """roles.json."""
        path = self.folder / "roles.json"
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"roles": [], "failed": None}
        return state

    def role(self, name: str) -> dict[str, Any]:
        """What roles.json says of a role."""
        return next((one for one in self.state["roles"] if one["name"] == name), {})

    def wait_for(self, name: str, state: str) -> None:
        """Until a role is in a state."""
        wait_until(lambda: self.role(name).get("state") == state, patience(20), self.log.read_text)


@pytest.fixture
def started() -> Iterator[list[Job]]:
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        job.process.terminate()
        job.process.wait()


def test_a_server_that_never_answers_delays_nobody(tmp_path: Path, started: list[Job]) -> None:
    silent = (f"exec python3 -c {shlex.quote(SILENT)}", {"ready": {"http": "/", "within": 60}})
    servers: dict[str, tuple[str, dict[str, Any]]] = {f"silent{number}": silent for number in range(4)}
    job = Job(tmp_path / "job", **servers, main=("sleep 0.7; exit 6", {"ends": True}))
    started.append(job)
    wait_until(lambda: bool(job.state["failed"]), patience(20), job.log.read_text)
    failed, ended = time.time(), (tmp_path / "job" / "roles" / "main").stat().st_mtime
    assert job.state["failed"]["name"] == "main"
    assert failed - ended < patience(3)
    assert job.end() == 6


def test_a_client_that_ends_before_its_server_has_ended_is_not_the_first(tmp_path: Path, started: list[Job]) -> None:
    """The server's process on its second node dies; its script takes longer than that of the client to say so."""
    serves = "echo 137 >logs/node-1.rank-1.exit; sleep 0.2; : >gone; sleep 60"
    client = "until [ -e ../server/gone ]; do sleep 0.05; done; echo 1 >logs/node-0.rank-0.exit; exit 1"
    job = Job(tmp_path / "job", server=(serves, {"nodes": [[1, 2]]}), main=(client, {**ENDS, "nodes": [[0, 1]]}))
    started.append(job)
    assert job.end() == 137
    failed = job.state["failed"]
    assert (failed["name"], failed["node"], failed["exit_code"]) == ("server", "n3", 137)
    assert failed["why"] == "ended with exit code 137 on n3 while the job needs it"


def test_a_role_is_restarted_at_its_address_as_often_as_asked_and_then_the_job_fails(
    tmp_path: Path, started: list[Job]
) -> None:
    serves = "echo $ROLE_PORT >>../ports; sleep 0.2; exit 9"
    job = Job(tmp_path / "job", server=(serves, {"restart": 2}), main=("sleep 60", {"ends": True}))
    started.append(job)
    assert job.end() == 9
    ports = (tmp_path / "job" / "roles" / "ports").read_text().split()
    assert len(ports) == 3
    assert set(ports) == {str(job.role("server")["port"])}
    assert (job.role("server")["restarts"], job.state["failed"]["name"]) == (2, "server")


def test_who_ignores_the_request_to_end_is_killed_after_its_grace_time(tmp_path: Path, started: list[Job]) -> None:
    """In whatever session; and what failed is on record before the end, which may take its time."""
    serves = "trap '' TERM; setsid sleep 55.5 & echo $! >pid; : >begun; sleep 55.5"
    job = Job(
        tmp_path / "job",
        server=(serves, {}),
        main=("until [ -e ../server/begun ]; do sleep 0.1; done; exit 5", {"ends": True}),
    )
    started.append(job)
    wait_until(lambda: bool(job.state["failed"]), patience(20), job.log.read_text)
    assert job.role("server")["state"] != "ended"
    assert job.end() == 5
    assert "killed, as they ran on after their grace time: server" in job.log.read_text()
    stray = int((tmp_path / "job" / "roles" / "server" / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{stray}/cmdline").exists(), patience(10), lambda: f"{stray} lives on")


def test_the_roles_may_save_when_the_whole_job_is_told_to_end(tmp_path: Path, started: list[Job]) -> None:
    """Slurm sends SIGTERM to all processes at once: that which holds the ports is not the first to kill."""
    saves = "trap 'sleep 2; : >saved; exit 0' TERM; : >begun; while :; do sleep 0.1; done"
    job = Job(tmp_path / "job", main=(saves, {"ends": True, "grace": 10}))
    started.append(job)
    begun = tmp_path / "job" / "roles" / "main" / "begun"
    wait_until(begun.exists, patience(20), job.log.read_text)
    holders = [one for one in Path("/proc").glob("[0-9]*/cmdline") if _holds(one, job)]
    assert len(holders) == 1
    os.kill(int(holders[0].parent.name), signal.SIGTERM)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143
    assert begun.with_name("saved").exists()


def _holds(path: Path, job: Job) -> bool:
    try:
        words = path.read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return False
    return "role_ports" in words and str(job.folder) in words


def test_what_is_left_is_ended_although_what_holds_the_ports_was_killed(tmp_path: Path, started: list[Job]) -> None:
    job = Job(
        tmp_path / "job",
        server=("trap '' TERM; setsid sleep 55.5 & echo $! >pid; sleep 55.5", {}),
        main=("until [ -e go ]; do sleep 0.1; done", ENDS),
    )
    started.append(job)
    job.wait_for("main", "ready")
    (holder,) = [one for one in Path("/proc").glob("[0-9]*/cmdline") if _holds(one, job)]
    os.kill(int(holder.parent.name), signal.SIGKILL)
    (tmp_path / "job" / "roles" / "main" / "go").touch()
    assert job.end() == 0
    stray = int((tmp_path / "job" / "roles" / "server" / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{stray}/cmdline").exists(), patience(10), lambda: f"{stray} lives on")


def test_no_role_failed_where_the_script_of_the_job_was_killed(tmp_path: Path, started: list[Job]) -> None:
    """Slurm then ends all processes of the job, the roles first."""
    job = Job(tmp_path / "job", server=("exec sleep 60", {}), main=("exec sleep 60", ENDS))
    started.append(job)
    job.wait_for("main", "ready")
    job.process.kill()
    wait_until((tmp_path / "job" / "roles" / "over").exists, patience(20), job.log.read_text)
    assert job.state["failed"] is None


def test_a_process_without_an_environment_is_that_of_the_role_above_it(tmp_path: Path) -> None:
    """One that sets its title may write over it: the restart of one role must not end those of another one."""
    variables = {**os.environ, "HPC_LAUNCH_ATTEMPT_DIR": str(tmp_path / "train")}
    words = ["bash", "-c", "env -i sleep 55 >&- & echo $!; exec 1>&-; wait"]
    with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        titled = int(parent.stdout.read())
        wait_until(lambda: not environ_of(titled), patience(10), lambda: str(environ_of(titled)))
        assert [is_of_others(titled, str(tmp_path / name)) for name in ("server", "train")] == [True, False]
        parent.kill()
        parent.wait()
        wait_until(lambda: not is_of_others(titled, str(tmp_path / "server")), patience(10), lambda: str(titled))
        os.kill(titled, signal.SIGKILL)
