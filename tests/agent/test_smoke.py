"""The program that a small job runs on its nodes, as two processes of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent.describe_host import probe
from tests.agent.program import program
from tests.cluster.faults import wait_until


def run(
    folder: Path, *more: str, size: int = 2, proxy: str = "", before_last: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """What each process measured. Without site packages there is no PyTorch, which takes seconds to start."""
    command = [*program("smoke", "-S"), str(folder), *more]
    base = {"PATH": "/usr/bin:/bin", "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "https_proxy": proxy}
    processes = []
    for rank in range(size):
        if rank == size - 1:
            before_last()
        environment = {**base, "RANK": str(rank)}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * size
    records = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]
    assert [json.loads(output) for output in outputs] == records
    return records


def test_two_processes_meet_and_say_through_which_interface(tmp_path: Path) -> None:
    for record in run(tmp_path, "--folder", f"here={tmp_path}", "--folder", "nowhere=/nonexistent"):
        together = record["together"]
        assert together["connected"] is True
        assert together["interface"] == "lo"
        assert together["folders"] == {"here": True}
        assert "all_reduce" not in together
        assert record["internet"] is None
        assert record["cpus"] == len(os.sched_getaffinity(0))
        assert record["faults"] == []
    assert not list(tmp_path.glob(".hpc-launch-probe-*"))


@pytest.mark.parametrize(("answers", "found"), [(True, "direct"), (False, "none")])
def test_an_answer_counts_as_the_internet(tmp_path: Path, answers: bool, found: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1] if answers else 9
        (record,) = run(tmp_path, "--reach", f"127.0.0.1:{port}", size=1)
    assert record["internet"] == {"compute": found}


def test_a_proxy_s_password_is_in_no_record_and_no_log(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            one = server.accept()[0]
            one.recv(999)
            one.sendall(b"HTTP/1.1 200 ok\r\n\r\n")
            one.close()

        threading.Thread(target=serve, daemon=True).start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        (record,) = run(tmp_path, "--reach", "127.0.0.1:9", size=1, proxy=f"http://alice:S3cretPw@{place}")
    assert "S3cretPw" not in json.dumps(record), "which is also the job's output"
    assert record["internet"] == {"compute": "proxy", "needs_password": True}


def test_a_probe_does_not_follow_a_link(tmp_path: Path) -> None:
    """A teammate has made a link of that name in a folder that the team can write to."""
    precious = tmp_path / "precious"
    precious.write_text("work")
    (tmp_path / ".hpc-launch-probe-token").symlink_to(precious)
    assert probe("write", "token", [str(tmp_path)]) == {str(tmp_path): False}
    assert precious.read_text() == "work"


def test_another_user_who_connects_is_no_node(tmp_path: Path) -> None:
    strangers = []

    def connect() -> None:
        wait_until((tmp_path / "meeting.json").exists, 60)
        port = json.loads((tmp_path / "meeting.json").read_text())["port"]
        bad = [b"x" * 4096, b"x" * 64, b"x" * 9, b""]
        for data in bad * 40:
            strangers.append(socket.create_connection(("127.0.0.1", port)))
            strangers[-1].sendall(data)

    for record in run(tmp_path, before_last=connect):
        assert record["together"]["connected"] is True
    for one in strangers:
        one.close()
    names = {"met-1", "meeting.json", "rank-0.json", "rank-1.json"}
    assert {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == dict.fromkeys(names, 0)
