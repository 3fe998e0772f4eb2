"""The agent that holds a host's part of a job: what it reports of the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_launch.agent import hpc_launch_on_host


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
        [sys.executable, "-I", hpc_launch_on_host.__file__, "bash", "-c", command, str(tmp_path)],
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
