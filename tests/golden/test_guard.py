"""The guard of a node: which processes the warning signal reaches."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_launch.base.installed import shipped
from tests.agent.program import archive
from tests.busy import patience

TRAINING = """
import ctypes, os, signal, sys, time
folder, titled = sys.argv[1:]
if titled == "titled":  # as setproctitle does
    first, end = open("/proc/self/stat").read().rpartition(")")[2].split()[47:49]
    ctypes.memset(int(first), 0, int(end) - int(first))
def warned(number, frame):
    with open(folder + "/warned", "a") as file:
        file.write(f"{os.getpid() == main}\\n")
    os._exit(0)
main = os.getpid()
signal.signal(signal.SIGUSR1, warned)
if os.fork() == 0:  # like a worker that loads data
    time.sleep(2)
    os._exit(0)
open(folder + "/ready", "w").close()
time.sleep(60)
"""
SCRIPT = """
job_warn=USR1 attempt_dir=$1
export HPC_LAUNCH_ATTEMPT_DIR=$1 HPC_LAUNCH_RUN_DIR=$1 HPC_LAUNCH_STOP_FILE=$1/stop
die() { exit 9; }
. "$2"
shift 2
exec bash "$HPC_LAUNCH_ATTEMPT_DIR/guard.sh" "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("title", ["plain", "titled"])
@pytest.mark.parametrize("launcher", [[], ["bash", "-c", '"$@"; exit', "launcher"]])
def test_the_signal_reaches_the_main_process_of_a_rank_alone(tmp_path: Path, title: str, launcher: list[str]) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = [*launcher, "env", "RANK=0", sys.executable, str(tmp_path / "train.py"), str(tmp_path), title]
    (tmp_path / "hooks").mkdir()
    shutil.copy(archive(), tmp_path / "hooks")
    part = shipped("slurm_templates") / "parts" / "guard.sh"
    guard = subprocess.Popen(["bash", "-c", SCRIPT, "script", str(tmp_path), str(part), *words])
    end = time.monotonic() + patience(30)
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    (tmp_path / "stop").touch()
    assert guard.wait(timeout=patience(30)) == 0
    assert (tmp_path / "warned").read_text() == "True\n"
