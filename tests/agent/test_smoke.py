"""The program that a small job runs on its nodes, as two processes of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpc_launch.site_tools.learning.probe_jobs import PROGRAM


def run(folder: Path, *more: str, size: int = 2) -> list[dict[str, Any]]:
    """What each process measured. Without site packages there is no PyTorch, which takes seconds to start."""
    command = [sys.executable, "-I", "-S", str(PROGRAM[0]), str(folder), *more]
    base = {"PATH": "/usr/bin:/bin", "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost"}
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * size
    records = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]
    assert [json.loads(output) for output in outputs] == records
    return records


def test_two_processes_sum_and_say_through_which_interface(tmp_path: Path) -> None:
    for record in run(tmp_path, "--folder", f"here={tmp_path}", "--folder", "nowhere=/nonexistent"):
        together = record["together"]
        assert together["sum_is_right"] is True
        assert together["interface"] == "lo"
        assert together["bytes"] > 2**21
        assert together["folders"] == {"here": True}
        assert together["torch"] is None
        assert record["internet"] is None
        assert record["faults"] == []
    assert not list(tmp_path.glob(".hpc-launch-probe-*"))


def test_a_node_without_the_internet_says_so(tmp_path: Path) -> None:
    (record,) = run(tmp_path, "--reach", "127.0.0.1:9", size=1)
    assert record["internet"] == {"compute": "none"}


def test_an_answer_counts_as_the_internet(tmp_path: Path) -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        (record,) = run(tmp_path, "--reach", f"127.0.0.1:{server.getsockname()[1]}", size=1)
    assert record["internet"] == {"compute": "direct"}
