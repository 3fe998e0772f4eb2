"""The start of hosts over ssh. `ssh` runs the command here, except on a host that never gets to it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.agent.program import altered, program
from tests.busy import patience

SSH = """\
#!/bin/bash
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
