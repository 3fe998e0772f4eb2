"""The node check without a cluster: its processes, the judgement over many nodes, and what nodes and judge exchange."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.agent import check as node_check
from hpc_launch.agent import check_compare, check_gpus, check_host
from hpc_launch.agent import judge as judging


def test_a_check_that_hangs_crashes_or_floods_ends() -> None:
    def crash() -> Any:
        raise ValueError("x")

    def hang() -> Any:
        time.sleep(60)

    def abort() -> Any:
        os.abort()

    def some() -> Any:
        yield [{"check": "first", "ok": True, "text": ""}]
        yield [{"check": "second", "ok": True, "text": ""}]
        time.sleep(60)

    checks = {
        "hangs": node_check.Check(hang, 0.3),
        "crashes": node_check.Check(crash, 5.0),
        "dies": node_check.Check(abort, 5.0),
        "floods": node_check.Check(lambda: check_host.result(True, "x" * 10**6), 5.0),
        "several": node_check.Check(some, 0.3),
        "works": node_check.Check(lambda: check_host.result(True, "fine"), 5.0),
    }
    found = {one["check"]: one for some in node_check.results_of(node_check.start(checks)) for one in some}
    assert {name: one["ok"] for name, one in found.items()} == {
        "hangs": False,
        "crashes": None,
        "dies": None,
        "floods": True,
        "first": True,
        "second": True,
        "several": False,
        "works": True,
    }
    assert found["hangs"]["text"] == "hangs: no answer"


# -- the judgement --------------------------------------------------------------------------------

OUTCOMES = st.sampled_from([True, False, None])
VALUES = (
    st.none()
    | st.floats(-1e12, 1e12)
    | st.text(max_size=5)
    | st.dictionaries(st.sampled_from("ab"), st.text(max_size=2))
)
NODES = st.integers(2, 9)


@given(st.data(), NODES)
def test_a_majority_is_never_blamed_for_a_check(data: st.DataObject, count: int) -> None:
    found = {
        f"n{number}": {
            check: {"ok": data.draw(OUTCOMES), "text": "t", "value": data.draw(VALUES)}
            for check in ("gpus", "cpu", "memory", "clock", "network", "infiniband", "software", "interface ib0")
        }
        for number in range(count)
    }
    check_compare.compare(found, 0)
    for early in (True, False):
        bad, common, _ = check_compare.judged(found, early)
        for check in {one["check"] for one in bad}:
            assert 2 * sum(one["check"] == check for one in bad) <= count
        assert all(2 * one["nodes"] > 0 for one in common)


@pytest.mark.parametrize(("place", "blamed"), [("local", []), ("shared", ["n1"])])
def test_no_node_is_blamed_for_what_others_have_on_their_own_disks(place: str, blamed: list[str]) -> None:
    """Such as a folder of an earlier job in /tmp, or of another user."""
    missing = {"ok": False, "text": "/tmp/cache: No such file or directory", "value": "missing"}
    found = {"n1": {"path /tmp/cache": missing}, "n2": {"path /tmp/cache": {"ok": True, "text": "", "value": place}}}
    check_compare.compare(found, 0)
    bad, common, _ = check_compare.judged(found)
    assert [one["node"] for one in bad] == blamed
    assert [one["text"].partition(" ")[0] for one in common] == ([] if blamed else ["n1:"])


@pytest.mark.parametrize(
    ("promised", "blamed"), [("", []), ("3", []), ("4", ["n1"])], ids=["unknown", "as the node has", "as the profile"]
)
def test_the_only_node_of_a_job_is_not_blamed_for_what_the_profile_states(
    promised: str, blamed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", promised)
    three = "".join(f"{gpu}, 3, NVIDIA A100, 0, 550\n" for gpu in range(3))
    found = {"n1": {"gpus": check_gpus.nvidia(4, "", lambda _words, _limit: (0, three))}}
    bad, common, _ = check_compare.judged(found)
    assert [one["node"] for one in bad] == blamed
    assert bool(common) == (not blamed)


def test_what_is_said_early_remains_true() -> None:
    found = {f"n{number}": {"gpus": {"ok": number > 1, "text": ""}} for number in range(1, 3)}
    whole = {**found, "n3": {}, "n4": {}}
    assert check_compare.judged(whole, True)[0] == []
    whole["n3"] = {"gpus": {"ok": True}}
    assert [one["node"] for one in check_compare.judged(whole, True)[0]] == ["n1"]


def results(*checks: str, ok: Any = True) -> list[dict[str, Any]]:
    return [{"check": check, "ok": ok, "text": "t", "value": None} for check in checks]


class Rehearsal(judging.Judge):
    """A judge whose clock the test sets."""

    def __init__(self, *names: str) -> None:
        super().__init__("/nonexistent", list(names))

    def begin(self, now: float, *nodes: str) -> None:
        begun = {"shm": 4.4, "gpus": 4.4}
        for node in nodes:
            self.send(now, node, begun=begun, results=results("start"))

    def send(self, now: float, node: str, **words: Any) -> None:
        self.nodes[node].keep(words, now)

    def at(self, now: float) -> set[str]:
        """The nodes that are still waited for at this time."""
        self.give_up(now)
        return {name for name, node in self.nodes.items() if node.owed}

    def bad(self) -> list[tuple[str, str, str]]:
        return [(one["node"], one["check"], one["text"]) for one in check_compare.judged(self.results())[0]]


@pytest.fixture
def two_passed() -> Rehearsal:
    """Three nodes, of which the first two have passed everything."""
    judge = Rehearsal("n1", "n2", "n3")
    judge.begin(1.0, "n1", "n2", "n3")
    for node in ("n1", "n2"):
        judge.send(1.2, node, results=results("shm", "gpus"))
    return judge


def test_a_check_that_others_passed_is_waited_for_only_so_long(two_passed: Rehearsal) -> None:
    two_passed.send(1.2, "n3", results=results("shm"))
    two_passed.send(5.0, "n3")
    assert two_passed.at(5.3) == {"n3"}
    assert two_passed.at(5.5) == set()
    assert two_passed.bad() == [("n3", "gpus", "gpus: no answer within 4 s")]


def test_a_node_that_says_nothing_more_has_stopped(two_passed: Rehearsal) -> None:
    two_passed.send(1.2, "n3", results=results("shm"))
    assert two_passed.at(5.5) == set()
    assert two_passed.bad() == [("n3", "answer", "stopped answering within 4 s, during: gpus")]


def test_a_check_that_is_slow_everywhere_is_waited_for() -> None:
    judge = Rehearsal("n1", "n2", "n3")
    judge.begin(1.0, "n1", "n2", "n3")
    assert judge.at(30.0) == {"n1", "n2", "n3"}
    for node in ("n1", "n2"):
        judge.send(31.0, node, results=results("shm", "gpus"))
    assert judge.at(150.0) == {"n3"}
    judge.send(150.0, "n3", results=results("shm", "gpus"))
    assert (judge.at(150.0), judge.bad()) == (set(), [])


@pytest.mark.parametrize(("began", "waits", "given_up"), [(1.0, 11.5, 12.5), (10.0, 59.0, 61.0)])
def test_a_node_that_does_not_start_the_check_is_named(began: float, waits: float, given_up: float) -> None:
    judge = Rehearsal("n1", "n2", "n3")
    for node in ("n1", "n2"):
        judge.send(began, node, begun={}, results=results("start"))
    assert judge.at(waits) == {"n3"}
    assert judge.at(given_up) == set()
    assert [bad[:2] for bad in judge.bad()] == [("n3", "answer")]


def test_a_step_that_fails_on_all_nodes_blames_nobody_and_is_not_waited_for_long() -> None:
    judge = Rehearsal("n1", "n2", "n3")
    assert judge.at(200.0) == {"n1", "n2", "n3"}
    assert judge.at(250.0) == set()
    assert judge.bad() == []
    judge = Rehearsal("n1", "n2", "n3")
    for node in ("n1", "n2", "n3"):
        judge.send(1.0, node, done=True, part="check")
    assert (judge.at(1.0), judge.bad()) == (set(), [])
    assert [one["nodes"] for one in check_compare.judged(judge.results())[1]] == [3]


def test_a_check_that_is_killed_has_not_passed(two_passed: Rehearsal) -> None:
    two_passed.send(1.2, "n3", results=results("shm"))
    two_passed.send(1.3, "n3", done=True)  # by the shell, when python3 has ended
    assert two_passed.at(1.3) == set()
    assert two_passed.bad() == [("n3", "answer", "stopped answering within 0 s, during: gpus")]


def test_the_end_of_the_part_inside_the_image_is_no_fault_of_a_node() -> None:
    judge = Rehearsal("n1", "n2", "n3")
    for node in ("n1", "n2", "n3"):
        judge.send(1.0, node, begun={"image": 29.0, "software": 29.0, "shm": 4.4}, results=results("start", "shm"))
    for node in ("n1", "n2"):
        judge.send(2.0, node, results=results("image", "software"))
    judge.send(2.0, "n3", results=results("image"))
    assert judge.at(2.0) == {"n3"}
    judge.send(2.1, "n3", done=True, part="check-image")
    assert (judge.at(2.1), judge.bad()) == (set(), [])
    assert judge.results()["n3"]["software"]["ok"] is None


def test_a_measurement_has_a_limit_of_its_own_on_each_node(two_passed: Rehearsal) -> None:
    two_passed.send(1.2, "n3", results=results("shm", "gpus"))
    for one in two_passed.nodes.values():
        one.owed["pair 1"] = judging.Owed(2.0, 16.0, firm=True)
    for node in ("n1", "n2"):
        two_passed.send(3.0, node, results=results("pair 1"))
    assert two_passed.at(17.5) == {"n3"}
    assert two_passed.at(18.5) == set()
    assert two_passed.bad() == [("n3", "answer", "stopped answering within 18 s, during: pair 1")]


# -- the files of the nodes, and the port ---------------------------------------------------------


@pytest.fixture
def judge(tmp_path: Path) -> judging.Judge:
    (tmp_path / "agent").mkdir()
    made = judging.Judge(str(tmp_path), ["n1", "n2"])
    made.prepare()
    return made


def waited_for(judge: judging.Judge) -> set[str]:
    judge.read(judge.seconds())
    return {name for name, node in judge.nodes.items() if node.owed}


def test_what_a_node_writes_counts_line_by_line(judge: judging.Judge, tmp_path: Path) -> None:
    line = json.dumps({"node": "n1", "results": results("start")}).encode() + b"\n"
    with (tmp_path / "agent" / "check" / "n1.jsonl").open("ab", buffering=0) as file:
        for piece in (line[:20], line[20:-1], line[-1:]):
            assert waited_for(judge) == {"n1", "n2"}
            file.write(piece)
    assert waited_for(judge) == {"n2"}


@pytest.mark.parametrize(
    "line", ["x", "{", "{}", "[]", '{"node": 5}', '{"node": "n9"}', '{"node": ["n1"]}', '{"node": "n1", "results": 5}']
)
def test_other_lines_in_a_log_are_ignored(judge: judging.Judge, tmp_path: Path, line: str) -> None:
    report = {"node": "n2", "results": results("start")}
    (tmp_path / "agent" / "check.log").write_text(f"{line}\n{json.dumps(report)}\n")
    assert waited_for(judge) == {"n1"}


@pytest.fixture
def port() -> Iterator[judging.Port]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = judging.Port(0, 2)
    made.start()
    yield made
    made.loop.call_soon_threadsafe(made.server.close)
    while made.open:
        time.sleep(0.02)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), made.loop).result(5)  # closes the connections
    made.loop.call_soon_threadsafe(made.loop.stop)
    made.join()
    made.loop.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def number_of(port: judging.Port) -> int:
    """Its port for IPv4."""
    return next(int(one.getsockname()[1]) for one in port.server.sockets if one.family == socket.AF_INET)


def test_nobody_else_listens_at_the_judge_s_port() -> None:
    """At no address of the first node: another program there could take the port of the other family."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    made = judging.Port(number, 2)
    try:
        for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
            with socket.socket(family) as other:
                if family == socket.AF_INET6:
                    other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                with pytest.raises(OSError, match="in use"):
                    other.bind((address, number))
    finally:
        made.server.close()
        made.loop.run_until_complete(asyncio.sleep(0))
        made.loop.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 1000])
def test_another_program_at_the_port_is_not_the_judge(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_host, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            with suppress(OSError):
                while True:
                    peer = server.accept()[0]
                    peer.sendall(answer)
                    peer.close()

        threading.Thread(target=work, daemon=True).start()
        found = check_host.reached("127.0.0.1", server.getsockname()[1], 2)
        assert [one["ok"] for one in found] == [False, None]
        assert found[0]["text"].startswith(f"cannot reach 127.0.0.1 port {server.getsockname()[1]} (127.0.0.1): ")
        server.shutdown(socket.SHUT_RDWR)


def test_nobody_is_blamed_for_a_port_full_of_the_connections_of_others(
    judge: judging.Judge, port: judging.Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few that are kept open disturb no node; of very many, the judge says that it could not check the port."""
    judge.port = port
    failed = {"check": "rendezvous port", "ok": False, "text": "cannot reach n1 port 9: timed out"}
    judge.nodes["n2"].keep({"results": [failed, *results("memory", ok=False)]}, 1.0)

    def outcome() -> list[str]:
        return [check for check, one in judge.results()["n2"].items() if one["ok"] is False]

    assert outcome() == ["rendezvous port", "memory"]
    with ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(socket.create_connection(("127.0.0.1", number_of(port)), 5))
        assert check_host.reached("127.0.0.1", number_of(port), 2)[0]["ok"] is True
        assert not port.crowded
        port.most = 100
        stack.enter_context(socket.create_connection(("127.0.0.1", number_of(port)), 5)).recv(1)
    assert outcome() == ["memory"]


def test_a_probe_has_a_name_that_nobody_can_take_in_advance(tmp_path: Path) -> None:
    """Files of another user, for each number that a process can have."""
    for number in range(os.getpid() - 5, os.getpid() + 5):
        (tmp_path / f".hpc-launch-check-n1-{number}").touch()
    assert check_host.writable(str(tmp_path))["ok"] is True
    check_host.remove(str(tmp_path / "removed by another user"))


def test_a_folder_that_the_training_creates_need_not_exist(tmp_path: Path) -> None:
    assert check_host.writable(str(tmp_path / "not" / "yet"))["ok"] is True
    assert list(tmp_path.iterdir()) == []


def test_the_speed_of_a_cpu_that_others_use_is_not_compared() -> None:
    mine = os.sched_getaffinity(0)
    cpu = {min(mine)}
    os.sched_setaffinity(0, cpu)
    try:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        try:
            time.sleep(0.2)
            found = check_host.cpu_speed()
        finally:
            for other in others:
                other.kill()
                other.wait()
    finally:
        os.sched_setaffinity(0, mine)
    assert (found["ok"], found["value"]) == (True, None), found
