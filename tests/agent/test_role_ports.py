"""The ports of roles: free, held, and none that an outgoing connection may get."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent import program, role_ports
from tests.cluster.faults import wait_until

SPEC = {"nodes": [[0, 1]], "ports": ["admin"], "port_range": 0, "grace": 5}


@pytest.fixture
def ports() -> Iterator[role_ports.Ports]:
    found = role_ports.Ports()
    yield found
    assert found.file is not None
    os.close(found.file)


def test_no_port_is_one_that_the_kernel_takes_for_a_connection(ports: role_ports.Ports) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = [ports.choose({**SPEC, "port_range": 100}) for _ in range(20)]
    taken = {port for one in found for port in (one["port"], one["master"], *one["named"].values())}
    taken |= {port for one in found for port in range(one["range"], one["range"] + one["ranged"])}
    assert len(taken) == 20 * 103
    assert not taken & set(range(first, last + 1))


def test_a_port_that_is_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch, ports: role_ports.Ports) -> None:
    start = ports.block(3)
    ports.held.clear()
    with socket.create_server(("127.0.0.1", start)):
        monkeypatch.setattr(role_ports, "TRIES", 1)
        monkeypatch.setattr(role_ports.RANDOM, "randrange", lambda *_: start)
        with pytest.raises(OSError, match="no 1 free ports"):
            ports.block(1)


def test_a_file_that_another_user_made_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(role_ports, "FOLDER", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / f"hpc-launch.ports.{os.getuid()}").symlink_to("/etc/passwd")
    found = role_ports.Ports()
    assert found.block(3)
    assert found.file is not None
    os.close(found.file)
    assert [path.name[:12] for path in (tmp_path / "home").iterdir()] == [".hpc-launch."]


def hold(folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """A job on this machine with two roles: what holds their ports, and what it chose."""
    (folder / "roles").mkdir(parents=True)
    (folder / "roles" / "plan.json").write_text(
        json.dumps({"roles": {name: {**SPEC, "names": [name]} for name in "ab"}})
    )
    words = [sys.executable, *program("role_ports"), str(folder), "127.0.0.1"]
    process = subprocess.Popen(words)
    path = folder / "roles" / "ports-0.json"
    wait_until(path.exists, explain=lambda: str(process.poll()))
    chosen: dict[str, Any] = json.loads(path.read_text())
    return process, chosen


def test_jobs_that_run_at_the_same_time_never_get_the_same_ports(tmp_path: Path) -> None:
    held = [hold(tmp_path / str(number)) for number in range(4)]
    ports = [port for _, chosen in held for one in chosen.values() for port in (one["port"], one["master"])]
    assert len(set(ports)) == len(ports) == 16
    for process, _ in held:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
