"""The agent that holds a host's part of a job: what it reports of the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_launch.agent.job_processes import start_of
from tests.agent.program import program
from tests.busy import patience

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
        limit = time.monotonic() + patience(5)
        while any(map(start_of, pids)) and time.monotonic() < limit:
            time.sleep(0.02)
        assert [start_of(pid) for pid in (*pids, launcher.pid)] == [None] * 3
        assert other.poll() is None
    finally:
        for process in (launcher, other):
            process.kill()
            process.wait()
        for pid in filter(start_of, pids):
            os.kill(pid, signal.SIGKILL)
