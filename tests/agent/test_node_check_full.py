"""`preflight: full` without a cluster: which pairs measure, whom their results blame, and what the program measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent import check, check_compare, check_full, judge
from tests.agent.program import program
from tests.prove.node_check_tools import DISTRIBUTED, TORCH

Speed = Callable[[str, str], float | None]
Found = dict[str, dict[str, dict[str, Any]]]


def rehearse(count: int, speed: Speed) -> tuple[list[list[list[str]]], Found]:
    """All rounds on some nodes, and their results; `speed` of a pair is None if its all-reduce fails."""
    names = [f"n{number}" for number in range(1, count + 1)]
    rounds = check_full.rounds_of(names)
    found: Found = {name: {} for name in names}
    for number, pairs in enumerate(rounds, 1):
        assert len({name for pair in pairs for name in pair}) == 2 * len(pairs)
        for one, two in pairs:
            value = speed(one, two)
            failed = {"ok": False, "text": "no answer within 10 s", "value": None}
            passed = {"ok": True, "text": "", "value": value}
            found[one][f"pair {number}"] = found[two][f"pair {number}"] = failed if value is None else passed
    return rounds, found


def judged(count: int, speed: Speed) -> tuple[set[str], list[str]]:
    """Nodes that are blamed, and checks that fail without blaming one."""
    rounds, found = rehearse(count, speed)
    check_full.compare_measured(found, rounds, gpus=8)
    bad, common, _ = check_compare.judged(found)
    return {one["node"] for one in bad}, [one["check"] for one in common]


@given(st.integers(3, 17), st.data(), st.sampled_from([None, 1.0]))
def test_a_bad_node_is_named_and_not_its_partner(count: int, data: st.DataObject, bad_speed: float | None) -> None:
    bad = f"n{data.draw(st.integers(1, count))}"
    assert judged(count, lambda one, two: bad_speed if bad in (one, two) else 40.0) == ({bad}, [])


@given(st.integers(6, 17), st.data())
def test_two_bad_nodes_are_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(1, count), min_size=2, max_size=2, unique=True))
    bad = {f"n{number}" for number in numbers}
    blamed, _ = judged(count, lambda one, two: None if bad & {one, two} else 40.0)
    assert blamed <= bad
    assert len(blamed) >= 1


@given(st.integers(3, 12), st.data())
def test_a_link_between_two_nodes_blames_neither(count: int, data: st.DataObject) -> None:
    ends = set(data.draw(st.lists(st.integers(1, count), min_size=2, max_size=2, unique=True)))
    link = {f"n{number}" for number in ends}
    blamed, common = judged(count, lambda one, two: None if {one, two} == link else 40.0)
    assert blamed == set()
    tested = any(set(pair) == link for pairs in rehearse(count, lambda _one, _two: 1.0)[0] for pair in pairs)
    assert (check_full.LINK in common) == tested


@pytest.mark.parametrize(("count", "rounds"), [(1, 0), (2, 1), (3, 3), (4, 2), (5, 3), (64, 2)])
def test_healthy_nodes_pass_in_few_rounds(count: int, rounds: int) -> None:
    assert len(rehearse(count, lambda _one, _two: 40.0)[0]) == rounds
    assert judged(count, lambda _one, _two: 40.0) == (set(), [])


@given(st.integers(2, 12))
def test_what_fails_everywhere_blames_nobody(count: int) -> None:
    assert judged(count, lambda _one, _two: None) == (set(), [check_full.PAIRS])


def test_of_two_nodes_a_slow_pair_blames_nobody() -> None:
    assert judged(2, lambda _one, _two: 0.001) == (set(), [])


def test_the_message_has_the_figures() -> None:
    rounds, found = rehearse(4, lambda one, two: 0.5 if "n3" in (one, two) else 40.0)
    check_full.compare_measured(found, rounds, gpus=8)
    assert found["n3"][check_full.PAIRS]["text"] == (
        "all-reduce with n4: 0.5 GB/s; with n2: 0.5 GB/s; the median of the pairs is 40 GB/s"
    )


# -- measurements of a node ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        (
            {"n1": [790.0] * 5 + [410.0] + [790.0] * 2},
            ["n1: gpu matrix product: 410 GFLOP/s on GPU 5; the median of the job is 790 GFLOP/s"],
        ),
        (
            {"n1": [790.0] * 8, "n2": [500.0] * 8, "n3": [800.0] * 8},
            ["n2: gpu matrix product: 500 GFLOP/s on GPU 0; the median of the job is 790 GFLOP/s"],
        ),
        ({"n1": [790.0] * 8, "n2": [700.0] * 8}, []),
    ],
    ids=["one slow GPU on a single node", "all GPUs of a node are slow", "healthy"],
)
def test_gpus_that_are_slower_than_the_median_are_named(nodes: dict[str, list[float]], named: list[str]) -> None:
    found = {name: {"gpu matrix product": {"ok": True, "text": "", "value": ones}} for name, ones in nodes.items()}
    assert check_full.compare_measured(found, [], gpus=8) == {"gpu matrix product": "790 GFLOP/s"}
    assert [f"{one['node']}: {one['text']}" for one in check_compare.judged(found)[0]] == named


def test_the_judge_asks_the_nodes_that_can_measure_for_one_step_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n4 is bad and n5 has no PyTorch."""
    monkeypatch.setattr(judge, "LOOK_S", 0.02)
    names = ["n1", "n2", "n3", "n4", "n5"]
    (tmp_path / "agent").mkdir()
    made = judge.Judge(str(tmp_path), names, gpus=8)
    made.prepare()
    for name in names:
        checks: dict[str, tuple[bool | None, Any]] = {"start": (True, None), "shm": (name != "n4", None)}
        checks["rendezvous port"] = (True, f"{name}.site")
        checks["measurements"] = (None, None) if name == "n5" else (True, [5000, 5001, 5002, 5003, 5004])
        results = [{"check": key, "ok": ok, "text": "", "value": value} for key, (ok, value) in checks.items()]
        made.nodes[name].keep({"results": results}, 0.0)
    thread = threading.Thread(target=made.measure)
    thread.start()
    groups: list[list[str]] = []
    for step, task in enumerate(["measurement", "pair 1", "pair 2", "pair 3", "all-reduce of all nodes"]):
        assert check.appears(check.order_file(str(tmp_path), step), 10)
        order = json.loads(Path(check.order_file(str(tmp_path), step)).read_text())
        assert (order["task"], order["places"].get("n1", order["places"].get("n2"))[1]) == (task, 5000 + step)
        groups = order["groups"]
        for name in (name for group in groups for name in group):
            value = 1.0 if "pair" in task or "all" in task else None
            line = {"node": name, "results": [{"check": task, "ok": True, "text": "", "value": value}]}
            with Path(made.report_file(name)).open("a") as file:
                file.write(json.dumps(line) + "\n")
    thread.join(10)
    assert json.loads(Path(check.order_file(str(tmp_path), 5)).read_text())["groups"] == []
    assert groups == [["n1", "n2", "n3"]]
    bad, _, _ = made.review()
    assert [(one["node"], one["check"]) for one in bad] == [("n4", "shm")]
    assert made.medians == {"all-reduce of pairs": "1 GB/s", "all-reduce of all nodes": "1 GB/s"}


# -- the program that measures -------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "site" / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "site" / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "site" / "site" / "torch" / "distributed.py").write_text(DISTRIBUTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site" / "site"))
    return tmp_path / "site" / f"{os.uname().nodename}.compute"


def tasks(gpus: int, *names: str, limit: float = 20.0, fabric: str = "InfiniBand", tasks: int = 1) -> dict[str, Any]:
    """The results of steps on this node, which is the first of each pair."""
    program = check_full.Measuring(sys.executable, gpus, tasks, fabric)
    found = {}
    try:
        imported = program.imported()
        assert imported["ok"] is True
        places = dict.fromkeys(("n1", "n2"), ("127.0.0.1", imported["value"][0]))
        for name in names:
            groups = [["n1"], ["n2"]] if name == "measurement" else [["n1", "n2"]]
            order = {"task": name, "limit": limit, "groups": groups, "places": places}
            found.update({one["check"]: one for one in program.do(order, "n1")})
    finally:
        program.close()
        with program.process:
            pass
    return found


def test_every_gpu_is_measured(stand_in: Path) -> None:
    found = tasks(4, "measurement", "pair 1")
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(found, True)
    assert len(found["gpu matrix product"]["value"]) == 4
    assert set(found) == {
        *(name for name in check_full.SHARES if name.startswith("gpu")),
        "measurement",
        "pair 1",
        "nccl network",
    }
    assert found["nccl network"]["text"] == "NCCL uses IB"


def test_an_all_reduce_that_hangs_ends_and_the_next_can_run(stand_in: Path) -> None:
    stand_in.write_text("reduce hang")
    began = time.monotonic()
    found = tasks(4, "pair 1", "measurement", limit=4.0)
    assert found["pair 1"]["ok"] is False
    assert found["pair 1"]["text"] == "GPU 0: no answer within 4 s (all-reduce)"
    assert found["gpu matrix product"]["ok"] is True
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("fabric", "ok"), [("InfiniBand", False), ("", True)])
def test_sockets_are_wrong_where_there_is_a_fabric(stand_in: Path, fabric: str, ok: bool) -> None:
    stand_in.write_text("socket")
    found = tasks(1, "pair 1", fabric=fabric)
    assert found["nccl network"]["ok"] is ok


@pytest.mark.parametrize(
    ("transport", "fault", "outcome"),
    [
        ("fatal", "socket", (78, "so the job ends")),
        ("named", "socket", (0, "the training starts anyway")),
        ("fatal", "", (0, None)),
    ],
)
def test_the_transport_is_proved_before_the_training(
    stand_in: Path, tmp_path: Path, transport: str, fault: str, outcome: tuple[int, str | None]
) -> None:
    """Two nodes as two programs; a stand-in for PyTorch prints what NCCL says."""
    stand_in.write_text(fault)
    attempt = tmp_path / "run" / "attempts" / "001"
    (attempt / "agent").mkdir(parents=True)
    given = ["--full", "--quick", f"--transport={transport}", "--fabric=Slingshot", "--gpus=1", "--nodes=2", "--shared"]
    given += [f"--port={check_full.free_port()}", f"--python={sys.executable}"]
    nodes = [subprocess.Popen([*program("check"), attempt, name, *given]) for name in ("n1", "n2")]
    words = [*program("judge"), str(attempt), "--node=n1", "--node=n2", *given]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    for one in nodes:
        assert one.wait(30) == 0
    code, ends = outcome
    line = f"node check: on 2 of 2 nodes: NCCL uses Socket, although the site has Slingshot ({ends})"
    assert (done.returncode, line in done.stderr) == (code, ends is not None), done.stderr
    tasks = [json.loads(path.read_text())["task"] for path in sorted(attempt.glob("agent/check/step-*.json"))]
    assert tasks == ["all-reduce of all nodes", ""]


def test_without_pytorch_nothing_is_checked(stand_in: Path) -> None:
    (stand_in.parent / "site" / "torch" / "__init__.py").write_text("raise ImportError('no CUDA library')")
    for python in (sys.executable, "/nowhere/python"):
        program = check_full.Measuring(python, 0, 1, "")
        with program.process:
            found = program.imported()
            program.close()
        assert found["ok"] is None, found


@pytest.mark.prove  # as `doctor` does on a real Slurm
@pytest.mark.torch
@pytest.mark.slow
def test_the_node_s_processes_are_measured_with_the_real_pytorch() -> None:
    found = tasks(0, "measurement", tasks=2)
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(found, True), found
    assert len(found["cpu all-reduce"]["value"]) == 2
    assert all(one > 0 for one in found["cpu matrix product"]["value"])
