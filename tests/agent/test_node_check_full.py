"""`preflight: full` without a cluster: which pairs measure, whom their results blame, and what the program measures."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent import check_compare, check_full, check_gpus, check_reports, check_rounds
from hpc_launch.agent import check_gpus as gpus
from tests.prove.node_check_tools import DISTRIBUTED, TORCH

dcgm: Any = check_gpus


def answered(text: str, code: int = 1) -> Any:
    """What a tool says, whatever it is asked."""
    return lambda _words, _limit: (code, text)


Speed = Callable[[str, str], float | None]


def rehearse(count: int, speed: Speed) -> tuple[Any, dict[str, dict[str, Any]], int]:
    """All rounds on some nodes; `speed` of a pair is None if its all-reduce fails."""
    names = [f"n{number}" for number in range(1, count + 1)]
    places = {name: (name, 5000) for name in names}
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    plan = check_rounds.Rounds(8)
    steps = 0
    while tasks := plan.next(found, names, places):
        steps += 1
        for name, task in tasks.items():
            if task["task"] == check_rounds.MEASUREMENT:
                continue
            partners = [other for other, its in tasks.items() if its["port"] and its["address"] == task["address"]]
            speeds = [speed(one, two) for one in partners for two in partners if one < two]
            failed = None in speeds
            text = "no answer within 10 s" if failed else ""
            value = None if failed else min(one for one in speeds if one is not None)
            found[name][task["task"]] = {"ok": not failed, "text": text, "value": value}
    return plan, found, steps


def judged(plan: Any, found: dict[str, dict[str, Any]]) -> tuple[set[str], list[str]]:
    """Nodes that are blamed, and checks that fail without blaming one."""
    copy = {name: dict(results) for name, results in found.items()}
    plan.fold(copy)
    bad, common, _ = check_compare.judged(copy)
    return {one["node"] for one in bad}, [one["check"] for one in common]


@given(st.integers(3, 17), st.data(), st.sampled_from([None, 1.0]))
def test_a_bad_node_is_named_and_not_its_partner(count: int, data: st.DataObject, bad_speed: float | None) -> None:
    bad = f"n{data.draw(st.integers(1, count))}"
    plan, found, _ = rehearse(count, lambda one, two: bad_speed if bad in (one, two) else 40.0)
    blamed, common = judged(plan, found)
    assert blamed == {bad}
    assert check_rounds.PAIRS not in common
    assert check_rounds.LINK not in common


@given(st.integers(6, 17), st.data())
def test_two_bad_nodes_are_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(1, count), min_size=2, max_size=2, unique=True))
    bad = {f"n{number}" for number in numbers}
    plan, found, _ = rehearse(count, lambda one, two: None if bad & {one, two} else 40.0)
    blamed, _ = judged(plan, found)
    assert blamed <= bad
    assert len(blamed) >= 1


@given(st.integers(3, 12), st.data())
def test_a_link_between_two_nodes_blames_neither(count: int, data: st.DataObject) -> None:
    ends = set(data.draw(st.lists(st.integers(1, count), min_size=2, max_size=2, unique=True)))
    link = {f"n{number}" for number in ends}
    plan, found, _ = rehearse(count, lambda one, two: None if {one, two} == link else 40.0)
    blamed, common = judged(plan, found)
    assert blamed == set()
    tested = any(set(pair) == link for pairs in plan.pairs for pair in pairs)
    assert (check_rounds.LINK in common) == tested


@pytest.mark.parametrize(("count", "steps"), [(1, 1), (2, 2), (3, 5), (4, 3), (5, 4), (64, 3)])
def test_healthy_nodes_need_few_rounds(count: int, steps: int) -> None:
    plan, found, taken = rehearse(count, lambda _one, _two: 40.0)
    assert taken == steps
    assert judged(plan, found) == (set(), [])


@given(st.integers(2, 12))
def test_what_fails_everywhere_blames_nobody(count: int) -> None:
    plan, found, _ = rehearse(count, lambda _one, _two: None)
    blamed, common = judged(plan, found)
    assert blamed == set()
    assert check_rounds.PAIRS in common


def test_of_two_nodes_a_slow_pair_blames_nobody() -> None:
    plan, found, _ = rehearse(2, lambda _one, _two: 0.001)
    assert judged(plan, found) == (set(), [])


def test_the_message_has_the_figures() -> None:
    plan, found, _ = rehearse(4, lambda one, two: 0.5 if "n3" in (one, two) else 40.0)
    plan.fold(found)
    assert found["n3"][check_rounds.PAIRS]["text"] == (
        "all-reduce with n4: 0.5 GB/s; with n1: 0.5 GB/s; the median of the pairs is 40 GB/s"
    )


# -- tasks -----------------------------------------------------------------------------------------


def waiting(*names: str) -> Any:
    """Nodes that have passed the quick check and wait for a task."""
    kept = check_reports.Reports(list(names))
    for name in names:
        lines: list[dict[str, Any]] = [{"begun": ["shm"]}, {"results": [{"check": "shm", "ok": True}]}]
        for words in (*lines, {"place": ["10.0.0.1", 5000]}):
            kept.keep(json.dumps({"node": name, **words}).encode(), 1.0)
    return kept


def test_a_node_that_waits_for_the_others_is_not_given_up() -> None:
    kept = waiting("n1", "n2", "n3")
    kept.look(300.0, False)
    assert kept.open == {"n1", "n2", "n3"}


def test_a_node_that_freezes_during_a_measurement_is_named() -> None:
    kept = waiting("n1", "n2", "n3")
    for name in ("n1", "n2", "n3"):
        kept.assign(name, "pair 1", 11.0)
    for name in ("n1", "n2"):
        words = {"node": name, "results": [{"check": "pair 1", "ok": True, "value": 1.0}], "done": True}
        kept.keep(json.dumps(words).encode(), 3.0)
    kept.look(16.0, False)
    assert kept.open == {"n3"}
    kept.look(17.5, False)
    bad = check_compare.judged(kept.results())[0]
    assert [(one["node"], one["text"]) for one in bad] == [("n3", "stopped answering within 16 s, during: pair 1")]


@pytest.mark.parametrize("place", [5, "x", {"a": 1}, [], ["n1", "x"], ["n1", float("inf")], [None, 10**400], [[], 1]])
def test_a_malformed_place_breaks_nothing(place: Any) -> None:
    kept = waiting("n1")
    kept.keep(json.dumps({"node": "n1", "place": place}).encode(), 1.0)
    kept.look(2.0, False)
    assert kept.open == {"n1"}


# -- measurements of a node ----------------------------------------------------------------------


def measured(**nodes: list[float]) -> dict[str, dict[str, Any]]:
    return {name: {"gpu matrix product": {"ok": True, "text": "", "value": ones}} for name, ones in nodes.items()}


def test_one_slow_gpu_of_eight_is_named_on_a_single_node() -> None:
    found = measured(n1=[790.0] * 5 + [410.0] + [790.0] * 2)
    assert check_rounds.compare_measured(found) == {"gpu matrix product": "790 GFLOP/s"}
    bad = check_compare.judged(found)[0]
    assert [(one["node"], one["text"]) for one in bad] == [
        ("n1", "gpu matrix product: 410 GFLOP/s on GPU 5; the median of the job is 790 GFLOP/s")
    ]


def test_a_node_whose_gpus_are_all_slow_is_named() -> None:
    found = measured(n1=[790.0] * 8, n2=[500.0] * 8, n3=[800.0] * 8)
    check_rounds.compare_measured(found)
    assert [one["node"] for one in check_compare.judged(found)[0]] == ["n2"]


VALUES = st.none() | st.floats() | st.integers() | st.text(max_size=3) | st.lists(st.floats() | st.none(), max_size=3)


@given(st.lists(VALUES, min_size=1, max_size=6))
def test_malformed_values_break_nothing(values: list[Any]) -> None:
    found = {
        f"n{number}": {check: {"ok": True, "text": "", "value": value} for check in (*check_rounds.SHARES, "pair 1")}
        for number, value in enumerate(values)
    }
    check_rounds.compare_measured(found)
    plan = check_rounds.Rounds(0)
    plan.pairs = [[("n0", "n1")]]
    plan.fold(found)


# -- DCGM ----------------------------------------------------------------------------------------


def diagnosis(version: int, status: str = "Pass", name: str = "NVML Library") -> str:
    """An answer of dcgmi diag of DCGM 3 or 4, in the order of real ones."""
    gpus: list[dict[str, Any]] = [{"gpu_ids": "0,1,2,3"}]
    if version == 4:
        gpus = [{"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu} for gpu in range(4)]
    last = {**gpus[-1], "status": status}
    if status.lower() == "fail":
        text = "Detected 3 pending page retirements for GPU 2."
        last["warnings"] = [{"warning": text, "error_id": 1}] if version == 4 else [text]
    tests = [{"name": "Denylist", "results": [{**one, "status": "Pass"} for one in gpus]}, None]
    tests.append({"name": name, "results": [last]})
    words = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}], "version": "3.3"}}
    return "WARNING: THIS SHOULD NOT HAPPEN\n" + json.dumps(words, indent="\t") + "\n"


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("status", "name", "ok"),
    [
        ("Pass", "x", True),
        ("PASS", "x", True),
        ("Skip", "x", True),
        ("Fail", "x", False),
        ("FAIL", "x", False),
        ("Fail", "Persistence Mode", True),
    ],
)
def test_dcgm_names_what_fails(version: int, status: str, name: str, ok: bool) -> None:
    found = dcgm.dcgm(4, lambda _words, _limit: (0, diagnosis(version, status, name)))
    assert found["ok"] is ok, found
    if not ok:
        assert found["text"] == "DCGM: x: Detected 3 pending page retirements for GPU 2."


@pytest.mark.parametrize("version", [3, 4])
def test_dcgm_of_other_jobs_gpus_or_truncated_is_not_checked(version: int) -> None:
    text = diagnosis(version, "Fail")
    assert dcgm.dcgm(2, answered(text, 0))["ok"] is None
    for size in range(len(text) - 2):
        assert dcgm.dcgm(4, answered(text[:size]))["ok"] is None, size


AMD = """\
[
    {
        "gpu": 0,
        "ecc": {
            "total_correctable_count": 0,
            "total_uncorrectable_count": 0,
            "total_deferred_count": 0,
            "cache_correctable_count": 0,
            "cache_uncorrectable_count": 0
        }
    },
    {
        "gpu": 1,
        "ecc": {
            "total_correctable_count": 7,
            "total_uncorrectable_count": COUNT,
            "total_deferred_count": 0,
            "cache_correctable_count": 0,
            "cache_uncorrectable_count": 0
        }
    }
]
"""


@pytest.mark.parametrize("form", ["%s", '{"gpu_data": %s}'])
@pytest.mark.parametrize(("count", "ok"), [("0", True), ("3", False), ('"N/A"', True)])
def test_errors_of_amd_gpus_are_named(form: str, count: str, ok: bool) -> None:
    text = form.replace("%s", AMD.replace("COUNT", count))
    found = gpus.amd_errors(2, answered(text, 0))
    assert found["ok"] is ok
    assert ok or found["text"] == "GPU 1: 3 uncorrectable errors"
    assert gpus.amd_errors(1, answered(text, 0))["ok"] is None
    for size in range(len(text) - 3):
        assert gpus.amd_errors(2, answered(text[:size]))["ok"] is None, size


@given(st.text() | st.recursive(st.none() | st.text(), lambda one: st.lists(one)).map(json.dumps))
def test_no_answer_of_a_tool_breaks_its_check(text: str) -> None:
    error = "Error: unable to establish a connection to the specified host: localhost\n"
    for one in (text, error + text, f'{{"DCGM GPU Diagnostic": {{"test_categories": {text}}}}}'):
        assert dcgm.dcgm(4, answered(one, 225))["ok"] is None
    for one in (text, f'{{"gpu_data": {text}}}'):
        assert gpus.amd_errors(2, answered(one, 255))["ok"] is None


# -- the program that measures -------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "site" / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "site" / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "site" / "site" / "torch" / "distributed.py").write_text(DISTRIBUTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site" / "site"))
    return tmp_path / "site" / f"{os.uname().nodename}.compute"


def tasks(gpus: int, *names: str, limit: float = 20.0, fabric: str = "InfiniBand", tasks: int = 1) -> dict[str, Any]:
    """The results of tasks on this node."""
    check = check_full
    program = check.Measuring(sys.executable, gpus, tasks, fabric)
    try:
        assert program.imported()["ok"] is True
        common = {"limit": limit, "nodes": 2, "number": 0, "address": "127.0.0.1", "port": check.free_port()}
        return {one["check"]: one for name in names for one in program.do({"task": name, **common}, "")}
    finally:
        program.close()


def test_every_gpu_is_measured(stand_in: Path) -> None:
    found = tasks(4, "measurement", "pair 1")
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(found, True)
    assert len(found["gpu matrix product"]["value"]) == 4
    assert set(found) == {
        *(name for name in check_rounds.SHARES if name.startswith("gpu")),
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


def test_without_pytorch_nothing_is_checked(stand_in: Path) -> None:
    (stand_in.parent / "site" / "torch" / "__init__.py").write_text("raise ImportError('no CUDA library')")
    check = check_full
    for python in (sys.executable, "/nowhere/python", ""):
        program = check.Measuring(python, 0, 1, "")
        found = program.imported()
        program.close()
        assert found["ok"] is None, found


@pytest.mark.torch
@pytest.mark.slow
def test_the_node_s_processes_are_measured_with_the_real_pytorch() -> None:
    found = tasks(0, "measurement", tasks=2)
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(found, True), found
    assert len(found["cpu all-reduce"]["value"]) == 2
    assert all(one > 0 for one in found["cpu matrix product"]["value"])
