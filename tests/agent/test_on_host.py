"""The agents that start the hosts of a job over ssh, and that hold the part of one: what they report of its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_launch.agent import fan_out, lease
from hpc_launch.agent.job_processes import start_of
from tests.agent.program import altered, program
from tests.busy import patience
from tests.cluster.faults import wait_until


def test_connections_share_no_login_where_others_could_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "PLACE", str(tmp_path))
    folder = tmp_path / f"hpc-launch-ssh-{os.getuid()}"
    assert fan_out.one_login("ssh-1") == [f"-oControlPath={folder}/ssh-1-%C"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert fan_out.one_login("../ssh-1") == fan_out.one_login("") == []
    folder.chmod(0o750)
    assert fan_out.one_login("ssh-1") == []
    folder.rename(tmp_path / "own")
    folder.symlink_to(tmp_path / "own")
    (tmp_path / "own").chmod(0o700)
    assert fan_out.one_login("ssh-1") == []


TITLED = """\
import ctypes, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
first, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
ctypes.memset(first, 0, end - first)
worker = os.fork()
if worker:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print(os.getpid(), worker, flush=True)
time.sleep(600)
"""
"""As a rank that sets its title, and a worker of it that outlives it."""


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("echo 255 >$0/logs/node-1.rank-3.exit; exit 255", 255, "\nover\n"),
        ("exit 7", 7, ""),
        ("echo 7 >$0/logs/node-10.exit; exit 7", 7, ""),
        ("echo 0 >$0/logs/node-1.rank-3.exit; kill -KILL $$", 137, ""),
    ],
)
def test_only_an_end_that_the_command_noted_is_its_own(tmp_path: Path, command: str, code: int, output: str) -> None:
    (tmp_path / "logs").mkdir()
    reader, writer = os.pipe()
    done = subprocess.run(
        [*program("on_host"), "bash", "-c", command, str(tmp_path)],
        env={**os.environ, "HPC_LAUNCH_ATTEMPT_DIR": str(tmp_path), "HPC_LAUNCH_NODE": "1"},
        stdin=reader,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(reader)
    os.close(writer)
    assert (done.returncode, done.stdout) == (code, output), done.stderr


def test_a_host_whose_memory_others_have_filled_is_named_and_nothing_is_left_there() -> None:
    job_id = f"full-{os.getpid()}"
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 0 && exec "$@"', "_", *program("on_host"), "--lease", "true"],
        env={**os.environ, "HPC_LAUNCH_JOB_ID": job_id},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == os.EX_TEMPFAIL
    assert done.stderr == f"{os.uname().nodename}: cannot write a lease in /dev/shm: File too large\n"
    assert not [name for name in os.listdir(lease.FOLDER) if job_id in name]


def test_what_wrote_over_its_environment_is_not_left_behind(tmp_path: Path) -> None:
    folder, (reader, writer) = str(tmp_path), os.pipe()
    environment = {**os.environ, "HPC_LAUNCH_ATTEMPT_DIR": folder, "HPC_LAUNCH_NODE": "1"}
    words = ["bash", "-c", '"$@"; true', "bash", sys.executable, "-c", TITLED]
    launcher = subprocess.Popen(words, env=environment, stdout=writer, start_new_session=True)
    os.close(writer)
    other = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    with os.fdopen(reader) as output:
        pids = [int(word) for word in output.readline().split()]
    assert len(pids) == 2
    end = [*program("job_processes"), "end", folder, "1"]
    try:
        subprocess.run(end, check=True, timeout=60)
        wait_until(lambda: not any(map(start_of, (*pids, launcher.pid))), patience(5))
        assert other.poll() is None
    finally:
        for process in (launcher, other):
            process.kill()
            process.wait()
        for pid in filter(start_of, pids):
            os.kill(pid, signal.SIGKILL)


SSH = """\
#!/bin/bash
# Runs the command here, except on a host that never gets to it.
for host; do [[ $previous == -- ]] && break; previous=$host; done
[[ $host != endless ]] || exec yes
[[ $host != hanging ]] || exec sleep 600
[[ $host != lost ]] || { printf 'gone\\033[2J\\n' >&2; exit 9; }
exec bash -s
"""


def start(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    (folder / "logs").mkdir()
    (folder / "node.sh").write_text("exec cat >/dev/null\n")
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    return subprocess.run(
        words,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=patience(30),
        check=False,
    )


def test_a_lost_host_ends_the_others_and_is_named(tmp_path: Path) -> None:
    done = start(tmp_path, *program("fan_out"), tmp_path, "a", "lost", *(f"h{number}" for number in range(40)))
    assert done.returncode == 9, done.stderr
    assert done.stderr.endswith("] lost: its part of the job ended with code 9: gone?[2J\n")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["node-1.exit"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "why"), [("hanging", "it did not begin within 1 s"), ("endless", "it prints too much")]
)
def test_a_host_that_never_gets_to_the_job_is_named(tmp_path: Path, host: str, why: str) -> None:
    start_s = 1 if host == "hanging" else 120
    done = start(tmp_path, *altered("fan_out", START_S=start_s, LEFT_S=1), tmp_path, "a", host)
    assert done.stderr.endswith(f"] {host}: its part of the job ended with code 137: {why}\n")
    assert done.stderr.count("\n") == 1
