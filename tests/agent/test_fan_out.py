"""The tree by which hosts start other hosts. `ssh` runs the command here, except on a host that lies."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpc_launch.agent.fan_out import groups
from tests.agent.program import altered, program
from tests.busy import patience

SSH = """\
#!/bin/bash
for host; do [[ $previous == -- ]] && break; previous=$host; done
[[ $host != endless ]] || exec yes
[[ $host == liar ]] || exec bash -s
read -r line
eval "${line%%;*}"
printf 'lost 3 255 of others\\nlost \\xc2\\xb2 1 no number\\nlost 1 9 its part\\033[2J ended\\nover\\n'
cat >/dev/null
"""


@pytest.mark.parametrize(("count", "width"), [(0, 32), (1, 32), (32, 32), (33, 32), (64, 32), (1056, 32), (7, 3)])
def test_no_host_holds_more_connections_than_allowed(count: int, width: int) -> None:
    nodes = [(number, f"h{number}") for number in range(count)]
    found = groups(nodes, width)
    assert [node for group in found for node in group] == nodes
    assert len(found) == min(count, width)
    assert max(map(len, found), default=0) - min(map(len, found), default=0) <= 1


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


def test_a_host_speaks_only_for_those_below_it(tmp_path: Path) -> None:
    done = start(tmp_path, *program("fan_out"), "--width", "2", tmp_path, "liar", "b", "c", "d")
    assert done.returncode == 9, done.stderr
    assert done.stderr.endswith("] b: its part?[2J ended\n")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["node-1.exit"]


@pytest.mark.slow
def test_a_host_that_never_gets_to_the_job_is_named(tmp_path: Path) -> None:
    done = start(tmp_path, *altered("fan_out", START_S=1, LEFT_S=1), tmp_path, "a", "endless")
    assert done.stderr.endswith("] endless: its part of the job ended with code 137: it did not begin within 1 s\n")
    assert done.stderr.count("\n") == 1
