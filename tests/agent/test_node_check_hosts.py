"""What the node check adds on hosts without Slurm: its start, connections in both directions, the code."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent import check_compare, check_ssh
from tests.agent.program import program

PORTS = "ports between nodes"


def connections(count: int, *blocked: tuple[int, int], deaf: tuple[int, ...] = ()) -> dict[str, Any]:
    """Results of so many nodes, of which some cannot connect to others."""
    found = {}
    for node in range(1, count + 1):
        failed = {f"n{to}": "timed out" for source, to in blocked if source == node}
        value = {"failed": failed, "listens": node not in deaf, "port": 40000, "count": count - 1}
        found[f"n{node}"] = {PORTS: {"ok": True, "text": "", "value": value}}
    return found


@pytest.mark.parametrize(
    ("found", "blamed"),
    [
        (connections(3), {}),
        (
            connections(3, (3, 2)),
            {"n3": "cannot connect to n2 port 40000: timed out; n2 can connect to n3"},
        ),
        (connections(2, (1, 2)), {"n1": "cannot connect to n2 port 40000: timed out; n2 can connect to n1"}),
        (connections(3, (1, 2), (3, 2)), {"n2": "n1, n3 cannot connect to it at port 40000: timed out"}),
        (
            connections(4, (4, 1), (4, 2), (4, 3)),
            {
                "n4": "; ".join(
                    f"cannot connect to n{to} port 40000: timed out; n{to} can connect to n4" for to in (1, 2, 3)
                )
            },
        ),
        (connections(3, (1, 2), (3, 2), deaf=(2,)), {}),
    ],
    ids=["healthy", "one direction", "two nodes", "incoming", "outgoing", "port in use"],
)
def test_a_blocked_port_is_named_with_its_direction(found: dict[str, Any], blamed: dict[str, str]) -> None:
    check_compare.compare(found, 0)
    assert {one["node"]: one["text"] for one in check_compare.judged(found)[0]} == blamed


def test_nobody_is_blamed_before_all_nodes_have_answered() -> None:
    found = connections(4, (1, 2))
    found["n4"] = {}
    check_compare.compare(found, 0)
    assert check_compare.judged(found, True)[0] == []


def test_a_node_connects_to_its_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_ssh, "listener", lambda *_: None)
    monkeypatch.setattr(check_ssh, "connect", lambda _node, _port, address: address)
    listed = [f"n{number}=10.0.0.{number}" for number in range(100)]
    [[found]] = check_ssh.ports_between("n0", listed, 12345)
    assert len(found["value"]["failed"]) == found["value"]["count"] == 32
    assert {"n1", "n16", "n84", "n99"} <= set(found["value"]["failed"])
    assert not found["value"]["listens"]


def code_of(*nodes: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Who is blamed for these digests, and what is reported besides."""
    found = {
        f"n{number}": {"code": {"ok": True, "text": "", "value": digests}} for number, digests in enumerate(nodes, 1)
    }
    check_compare.compare(found, 0)
    bad, common, _ = check_compare.judged(found)
    return {one["node"]: one["text"] for one in bad}, [one["text"] for one in common]


def test_other_code_is_named_with_its_files() -> None:
    usual = {"train.py": "1", "model.py": "2"}
    text = "the code differs from that of the other nodes: "
    assert code_of(usual, usual, usual) == ({}, [])
    assert code_of(usual, {**usual, "model.py": "3"}, usual) == ({"n2": f"{text}model.py"}, [])
    assert code_of(usual, {"train.py": "1"}, usual) == ({"n2": f"{text}model.py"}, [])
    assert code_of({**usual, "outputs/config.yaml": "4"}, usual, usual) == ({}, [])
    assert code_of(usual, {**usual, "model.py": "3"}) == ({}, [f"n2: {text}model.py"])
    assert code_of(usual, {**usual, "outputs/config.yaml": "4"}) == ({}, [])
    many = {f"{number}.py": "1" for number in range(5)}
    assert code_of(many, dict.fromkeys(many, "2"), many) == ({"n2": f"{text}0.py, 1.py, 2.py and 2 others"}, [])


def test_the_code_is_read_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train.py", "runs/old/rank.sh", ".git/x.py", "venv/lib/torch.py", "venv/pyvenv.cfg", "data.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = check_ssh.code(str(tmp_path), str(tmp_path / "runs"))
    assert list(found["value"]) == ["train.py"]
    monkeypatch.setattr(check_ssh, "MOST_FILES", 1)
    (tmp_path / "more.py").write_text("")
    assert check_ssh.code(str(tmp_path), str(tmp_path / "runs"))["ok"] is None


def test_another_driver_is_reported_without_blame() -> None:
    found = {
        f"n{number}": {"gpus": {"ok": True, "text": "", "value": {"the GPU driver": driver}}}
        for number, driver in enumerate(("550.90", "550.90", "535.10"), 1)
    }
    check_compare.compare(found, 0)
    bad, common, _ = check_compare.judged(found)
    assert bad == []
    assert [one["text"] for one in common] == ["n3: the GPU driver is 535.10 here and 550.90 on the other nodes"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh")
def test_a_host_that_ssh_does_not_reach_has_a_report(tmp_path: Path) -> None:
    subprocess.run(
        [*program("check_ssh"), str(tmp_path), str(tmp_path / "log"), "gone.invalid"], check=True, timeout=60
    )
    said, report = (tmp_path / "log").read_text().splitlines()
    assert said.startswith("gone.invalid: ssh: Could not resolve hostname")
    [result] = json.loads(report)["results"]
    assert (result["check"], result["ok"]) == ("start", False)
    assert "gone.invalid: ssh:" in said
    assert result["text"] in said


def test_a_host_reports_for_itself_only(tmp_path: Path) -> None:
    """And what it prints besides is dropped."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/bash\nread -r line; eval "${line%%;*}"\n'
        'echo \'{"node": "good", "done": true}\'; echo welcome; echo \'{"node": "own", "done": true}\'\n'
    )
    ssh.chmod(0o755)
    words = [*program("check_ssh"), str(tmp_path), str(tmp_path / "log"), "own"]
    subprocess.run(words, check=True, timeout=60, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (tmp_path / "log").read_text() == '{"node": "own", "done": true}\n'
