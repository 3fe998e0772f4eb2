"""The node check without a cluster: the outputs of GPU tools, and the judgement over many nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpc_launch.agent import check as node_check
from hpc_launch.agent import check as run
from hpc_launch.agent import check_compare, check_host, check_reports, check_send
from hpc_launch.agent import check_gpus as gpus
from hpc_launch.agent import check_send as sending
from hpc_launch.agent import judge as judging
from tests.agent.gpu_tool import Ask, Tool
from tests.prove.node_check_tools import SMI

CHECKS: dict[str, Callable[[Ask], dict[str, Any]]] = {
    "gpus": lambda ask: gpus.nvidia(4, "a100", ask),
    "gpu state": lambda ask: gpus.nvidia_state(ask),
    "gpu links": lambda ask: gpus.nvidia_links(4, ask),
    "gpu processes": lambda ask: gpus.nvidia_processes(4, ask, 0.0),
}


@pytest.fixture(scope="module")
def smi(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    return Tool(tmp_path_factory.mktemp("smi") / "nvidia-smi", SMI, "smi")


def test_healthy_gpus_pass(smi: Tool) -> None:
    found = {name: check(smi.cut(10000)) for name, check in CHECKS.items()}
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(CHECKS, True)
    assert found["gpu links"]["value"] == 8
    assert found["gpus"]["value"] == {"gpus": 4, "models": ["NVIDIA A100-SXM4-80GB"]}


@pytest.mark.parametrize(
    ("fault", "check", "text"),
    [
        ("MISSING", "gpus", "3 of 4 GPUs"),
        ("NONE", "gpus", "0 of 4 GPUs: nvidia-smi finds none"),
        ("ECC", "gpus", "GPU 2: 2 uncorrectable memory errors"),
        ("MODEL", "gpus", "the GPUs are NVIDIA H100 80GB HBM3, not a100"),
        ("LOST", "gpus", "nvidia-smi exits with 15: Unable to determine the device handle for GPU"),
        ("PENDING", "gpu state", "GPU 1: a memory row waits to be remapped; the GPU needs a reset"),
        ("THROTTLED", "gpu state", "GPU 3: the hardware has lowered the clocks (heat or power)"),
        ("PROCESS", "gpu processes", "process 4711 holds 70123 MiB of a GPU"),
        ("HELD", "gpu processes", "61000 MiB of GPU 0 are in use"),
    ],
)
def test_a_fault_of_a_gpu_is_found(smi: Tool, fault: str, check: str, text: str) -> None:
    found = CHECKS[check](smi.faulty(fault))
    assert found["ok"] is False
    assert found["text"].startswith(text)


def test_a_link_that_is_down_counts(smi: Tool) -> None:
    assert gpus.nvidia_links(4, smi.faulty("LINKS"))["value"] == 7


@pytest.mark.parametrize("check", CHECKS)
def test_an_answer_truncated_at_any_byte_blames_nobody(smi: Tool, check: str) -> None:
    for size in range(500):
        found = CHECKS[check](smi.cut(size))
        assert found["ok"] is not False, (size, found)
        if check == "gpu links" and found["ok"]:
            assert found["value"] == 8, size


@pytest.mark.parametrize("check", CHECKS)
@given(st.text(), st.integers(0, 2))
def test_garbage_breaks_no_check(check: str, text: str, code: int) -> None:
    assert CHECKS[check](lambda _words, _limit: (code, text))["ok"] in (True, False, None)


def test_processes_of_this_job_are_no_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with subprocess.Popen(["sh", "-c", "echo; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as own:
        assert own.stdout is not None
        own.stdout.readline()  # /proc is empty just after the start
        assert gpus.of_this_job(str(own.pid))
        monkeypatch.setenv("SLURM_JOB_ID", "78")
        assert not gpus.of_this_job(str(own.pid))


XID = "3,7,100000000,-;NVRM: Xid (PCI:0000:9d:00): 79, pid=1, GPU has fallen off the bus.\n"


def test_only_recent_xids_count() -> None:
    log = f"{XID} SUBSYSTEM=pci\n6,8,9000500000,-,caller=T1;eth0: up\n"
    assert gpus.xids(log, 9001.0)["ok"] is True
    assert gpus.xids(log, 200.0)["text"] == "the kernel's log has Xid 79 of GPU 0000:9d:00"
    assert gpus.xids(log.replace("PCI:", ""), 200.0)["ok"] is False
    assert gpus.xids(log.replace(" 79,", " 31,"), 200.0)["ok"] is True


@pytest.mark.parametrize(
    "record",
    [
        "6,7,100000000,-;NVRM: Xid (PCI:[17819]: segfault at 0 ip 00 sp 00 error 6 in x): 79, pid=1[116b,5621+1000]",
        "6,7,100000000,-;x\\x0a[17819]: segfault at 0 in \\x0a3,7,100000000,-;NVRM: Xid (PCI:0000:9d:00): 79[11]",
        "6,7,100000000,-;x[17819]: segfault at 0 in 3,7,100000000,-;NVRM: Xid (PCI:0000:9d:00): 79, pid=1[116b]",
        "12,7,100000000,-;NVRM: Xid (PCI:0000:9d:00): 79, written by a program",
    ],
)
def test_no_process_writes_an_xid_into_the_kernel_s_log(record: str) -> None:
    """It chooses its own name, of 15 characters, and the name of its program, with line ends."""
    assert gpus.xids(f"{record}\n", 200.0)["ok"] is True


def test_the_kernel_s_log_is_read_as_a_whole(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    log.write_text(f"{XID.replace('100000000', str(int(uptime * 1e6)))}" + "6,8,9,-;eth0: up\n" * 10**4)
    assert gpus.kernel_log(str(log))["ok"] is False
    assert gpus.kernel_log(str(tmp_path / "none"))["ok"] is None


def test_a_check_that_hangs_crashes_or_floods_ends() -> None:
    def crash() -> Any:
        raise ValueError("x")

    def hang() -> Any:
        time.sleep(60)

    def abort() -> Any:
        os.abort()

    running = run.Running()
    running.start(
        {
            "hangs": (hang, 0.3),
            "crashes": (crash, 5.0),
            "dies": (abort, 5.0),
            "floods": (lambda: gpus.result(True, "x" * 10**6), 5.0),
            "works": (lambda: gpus.result(True, "fine"), 5.0),
        }
    )
    found = {one["check"]: one for some in running.results(0.5) for one in some}
    assert {name: one["ok"] for name, one in found.items()} == {
        "hangs": False,
        "crashes": None,
        "dies": None,
        "floods": None,
        "works": True,
    }
    assert found["hangs"]["text"] == "hangs: no answer"


# -- the judgement --------------------------------------------------------------------------------

OUTCOMES = st.sampled_from([True, False, None])
VALUES = st.none() | st.floats() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
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
    ("value", "blamed"),
    [
        ({"gpus": 4, "models": ["NVIDIA A100"]}, []),
        ({"gpus": 0, "promised": 0}, []),
        ({"gpus": 3, "promised": 4}, ["n1"]),
        (None, ["n1"]),
    ],
    ids=["model", "number in the profile", "fewer than Slurm promised", "nvidia-smi fails"],
)
def test_the_only_node_of_a_job_is_not_blamed_for_what_the_profile_states(value: Any, blamed: list[str]) -> None:
    found = {"n1": {"gpus": {"ok": False, "text": "", "value": value}}}
    bad, common, _ = check_compare.judged(found)
    assert [one["node"] for one in bad] == blamed
    assert bool(common) == (not blamed)


def test_what_is_said_early_remains_true() -> None:
    found = {f"n{number}": {"gpus": {"ok": number > 1, "text": ""}} for number in range(1, 3)}
    whole = {**found, "n3": {}, "n4": {}}
    assert check_compare.judged(whole, True)[0] == []
    whole["n3"] = {"gpus": {"ok": True}}
    assert [one["node"] for one in check_compare.judged(whole, True)[0]] == ["n1"]


def ready(names: tuple[str, ...] = ("n1", "n2", "n3")) -> Any:
    kept = check_reports.Reports(list(names))
    for name in names:
        kept.keep(json.dumps({"node": name, "begun": ["shm", "gpus"], "results": []}).encode(), 1.0)
    return kept


def results(*checks: str, ok: Any = True) -> list[dict[str, Any]]:
    return [{"check": check, "ok": ok, "text": "t", "value": None} for check in checks]


def send(kept: Any, now: float, node: str, **words: Any) -> None:
    kept.keep(json.dumps({"node": node, **words}).encode(), now)


def two_passed(now: float = 1.2) -> Any:
    """Three nodes, of which the first two have passed everything."""
    kept = ready()
    for node in ("n1", "n2"):
        send(kept, now, node, results=results("shm", "gpus"), done=True)
    return kept


def test_a_check_that_others_passed_is_waited_for_only_so_long() -> None:
    kept = two_passed()
    send(kept, 1.2, "n3", results=results("shm"))
    for now in (1.7, 3.0, 5.0):
        send(kept, now, "n3")
    kept.look(5.3, False)
    assert kept.open == {"n3"}
    kept.look(5.5, False)
    assert kept.open == set()
    bad = check_compare.judged(kept.results())[0]
    assert [(one["node"], one["text"]) for one in bad] == [("n3", "gpus: no answer within 4 s")]


def beat(kept: Any, times: list[float], *nodes: str) -> None:
    for now in times:
        for node in nodes:
            send(kept, now, node)
        kept.look(now, False)


def test_a_node_that_falls_silent_is_named_while_the_others_go_on() -> None:
    kept = ready()
    beat(kept, [1.5, 2.0], "n1", "n2", "n3")
    beat(kept, [2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.4], "n1", "n2")
    assert kept.open == {"n1", "n2", "n3"}
    beat(kept, [5.6], "n1", "n2")
    assert kept.open == {"n1", "n2"}
    assert kept.results()["n3"]["answer"]["text"] == "stopped answering within 5 s, during: gpus, shm"


def test_a_silence_of_all_nodes_or_under_load_blames_nobody() -> None:
    """All of them: the judge itself stood still. Under load, all are silent for a while now and then."""
    kept = ready()
    beat(kept, [1.5, 2.0], "n1", "n2", "n3")
    kept.look(7.0, False)
    send(kept, 7.0, "n1")
    kept.look(7.0, False)
    assert kept.open == {"n1", "n2", "n3"}
    kept = ready()
    beat(kept, [2.0, 2.9, 3.8], "n1", "n2", "n3")
    beat(kept, [4.7, 5.6, 6.5, 7.4, 8.3, 9.0], "n1", "n2")
    assert kept.open == {"n1", "n2", "n3"}
    beat(kept, [9.9], "n1", "n2")
    assert kept.open == {"n1", "n2"}


def test_a_node_that_measures_may_be_silent() -> None:
    kept = ready()
    for node in ("n1", "n2", "n3"):
        send(kept, 2.0, node, results=results("shm", "gpus"), place=["10.0.0.1", 9])
        kept.assign(node, "measurement", 27.0)
    for node in ("n1", "n2"):
        send(kept, 4.0, node, results=results("measurement"), done=True)
    kept.look(20.0, False)
    assert kept.open == {"n3"}


def test_a_check_that_is_slow_everywhere_is_waited_for() -> None:
    kept = two_passed(9.0)
    kept.look(40.0, False)
    assert kept.open == {"n3"}
    send(kept, 41.0, "n3", results=results("shm", "gpus"), done=True)
    assert check_compare.judged(kept.results()) == ([], [], {})


def test_a_node_that_does_not_connect_is_named() -> None:
    kept = check_reports.Reports(["n1", "n2", "n3"])
    for node in ("n1", "n2"):
        send(kept, 1.0, node, begun=[], results=[], done=True)
    kept.look(12.0, False)
    assert kept.open == {"n3"}
    kept.look(13.5, False)
    assert [one["node"] for one in check_compare.judged(kept.results())[0]] == ["n3"]


def test_a_node_whose_last_check_took_long_has_time_to_end() -> None:
    kept = two_passed()
    send(kept, 4.0, "n3", results=results("shm"))
    send(kept, 5.0, "n3", results=results("gpus"))
    kept.look(6.9, False)
    assert kept.open == {"n3"}
    kept.look(9.9, False)
    assert [one["node"] for one in check_compare.judged(kept.results())[0]] == ["n3"]


def test_a_check_that_is_killed_has_not_passed() -> None:
    kept = two_passed()
    send(kept, 1.2, "n3", results=results("shm"))
    send(kept, 1.3, "n3", done=True)  # by the shell, when python3 has ended
    bad = check_compare.judged(kept.results())[0]
    assert [(one["node"], one["text"]) for one in bad] == [("n3", "the check ended early, during: gpus")]


def test_nothing_is_waited_for_when_the_step_has_ended() -> None:
    kept = check_reports.Reports(["n1", "n2", "n3"])
    kept.look(1.0, True)
    assert kept.open == set()
    bad, common, _ = check_compare.judged(kept.results())
    assert (bad, [one["nodes"] for one in common]) == ([], [3])


LINES = st.binary(max_size=80) | st.builds(
    lambda words: json.dumps(words).encode(),
    st.dictionaries(
        st.sampled_from(["node", "begun", "results", "done", "clock_ahead_s", "seconds"]),
        st.sampled_from(["n1", "n9", None, 5, True, float("nan"), 10**400, {"n1": 1}, [[]], [{"check": []}], [5]])
        | st.lists(
            st.fixed_dictionaries(
                {"check": st.sampled_from(["cpu", "memory", "clock", "software", "x"])}
                | {"ok": VALUES, "text": VALUES},
                optional={"value": VALUES | st.dictionaries(st.text(max_size=3), VALUES, max_size=2)},
            ),
            max_size=3,
        ),
    ),
)


@given(st.lists(LINES, max_size=8))
@example([b"[" * 50000])
@example([b'{"node": "n1", "results": [{"check": "memory", "ok": true, "value": {"total_mib": "much"}}]}'])
def test_malformed_reports_break_nothing(lines: list[bytes]) -> None:
    kept = ready()
    for node in ("n2", "n3"):
        send(kept, 1.2, node, results=results("shm", "gpus"), done=True)
    for line in lines:
        kept.keep(line, 1.3)
    kept.look(60.0, True)
    found = kept.results()
    assert set(found) == {"n1", "n2", "n3"}
    check_compare.compare(found, 1000)
    bad, common, unchecked = check_compare.judged(found)
    assert {one["node"] for one in bad} <= {"n1"}
    json.dumps([bad, common, unchecked])


# -- the files of the nodes, and the port ---------------------------------------------------------


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    (tmp_path / "agent").mkdir()
    made = judging.Judge(str(tmp_path), ["n1", "n2"])
    made.tell_nodes({})
    return made


@pytest.fixture
def port() -> Iterator[Any]:
    made = check_send.Port(0, 2)
    yield made
    made.end()


def number_of(port: Any) -> int:
    return int(port.server.getsockname()[1])


def serve(port: Any, seconds: float = 0.3) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        port.serve(0.01)


def test_what_a_node_writes_counts_line_by_line(judge: Any, tmp_path: Path) -> None:
    line = json.dumps({"node": "n1", "results": results("shm"), "done": True}).encode() + b"\n"
    with (tmp_path / "agent" / "check" / "n1.jsonl").open("ab", buffering=0) as file:
        for piece in (line[:20], line[20:-1], line[-1:]):
            assert judge.reports.open == {"n1", "n2"}
            file.write(piece)
            judge.read_reports()
    assert judge.reports.open == {"n2"}


def test_a_node_and_the_judge_meet(judge: Any, port: Any, tmp_path: Path) -> None:
    judge.tell_nodes({"/shared/token": "5"})
    node = sending.Reports(str(tmp_path), "n1", "localhost", number_of(port))
    thread = threading.Thread(target=serve, args=(port, 3.0), daemon=True)
    thread.start()
    reached, link = node.connect()
    assert (reached["ok"], link["ok"], node.files) == (True, True, {"/shared/token": "5"}), (reached, link)
    assert node.ahead is not None
    assert abs(node.ahead) < 5
    node.send(results=results("x" * 10**5))
    judge.read_reports()
    assert judge.reports.nodes["n1"].results
    judge.order("n1", {"task": "pair 1"})
    judge.order("n1", {})
    assert [node.task((node.address, 5001)) for _ in range(2)] == [{"task": "pair 1"}, {}]
    thread.join()


def test_a_node_that_does_not_see_the_run_folder_prints_its_results(
    judge: Any, port: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "FILE_S", 0.2)
    other = tmp_path / "its-own" / "run" / "attempts" / "001"
    thread = threading.Thread(target=serve, args=(port, 2.0), daemon=True)
    thread.start()
    node = sending.Reports(str(other), "n1", "localhost", number_of(port))
    found = {one["check"]: one["ok"] for one in node.connect()}
    assert found == {"rendezvous port": True, "network": True, f"shared folder {tmp_path / 'its-own' / 'run'}": False}
    node.send(results=results("shm"), done=True)
    (tmp_path / "agent" / "check.log").write_text("what srun says\n" + capsys.readouterr().out)
    judge.read_reports()
    assert judge.reports.open == {"n2"}
    thread.join()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 1000])
def test_another_program_at_the_port_is_not_the_judge(
    tmp_path: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "CONNECT_S", 0.5)
    monkeypatch.setattr(sending, "DEADLINE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            with suppress(OSError):
                while True:
                    peer = server.accept()[0]
                    peer.sendall(answer)
                    peer.close()

        threading.Thread(target=work, daemon=True).start()
        node = sending.Reports(str(tmp_path), "n1", "127.0.0.1", server.getsockname()[1])
        assert [one["ok"] for one in node.reached()] == [False, None]
        server.shutdown(socket.SHUT_RDWR)


def test_nobody_else_listens_at_the_judge_s_port(port: Any) -> None:
    if port.server.family != socket.AF_INET6:
        pytest.skip("no IPv6")
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("::", number_of(port)))
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, number_of(port)), timeout=5).close()


def test_a_node_is_answered_beside_strangers_who_keep_connections(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        strangers = []
        for _ in range(150):
            strangers.append(stack.enter_context(socket.create_connection(("127.0.0.1", number_of(port)), 5)))
            serve(port, 0.005)
        assert len(port.open) <= check_send.STRANGERS + 2 * 2
        node = stack.enter_context(socket.create_connection(("127.0.0.1", number_of(port)), 5))
        node.sendall(b"\0" * 1000)
        node.shutdown(socket.SHUT_WR)
        serve(port)
        assert node.recv(100).startswith(check_send.ANSWER)
        monkeypatch.setattr(check_send, "LONGEST_S", 0.1)
        serve(port)
        assert (port.open, strangers[-1].recv(1)) == ({}, b"")


def test_no_node_is_blamed_for_a_port_full_of_strangers(judge: Any, port: Any) -> None:
    failed = {"ok": False, "text": "cannot reach n1 port 9: timed out", "value": None}
    absent = {"ok": False, "text": "did not connect within 14 s", "value": None}
    stopped = {"ok": False, "text": "stopped answering within 9 s", "value": None}
    judge.port = port

    def outcome() -> list[str]:
        found = {"n1": {"memory": dict(failed), "rendezvous port": dict(failed)}, "n2": {"answer": dict(absent)}}
        found["n3"] = {"answer": dict(stopped)}
        judge.compare_nodes(found)
        return [check for results in found.values() for check, one in results.items() if one["ok"] is False]

    assert outcome() == ["memory", "rendezvous port", "answer", "answer"]
    with ExitStack() as stack:
        for _ in range(3 * check_send.STRANGERS):
            stack.enter_context(socket.create_connection(("127.0.0.1", number_of(port)), 5))
            serve(port, 0.002)
    assert outcome() == ["memory", "answer"]


def test_a_probe_has_a_name_that_nobody_can_take_in_advance(tmp_path: Path) -> None:
    """Files of another user, for each number that a process can have."""
    tokens = [*judging.write_tokens([str(tmp_path)]), *judging.write_tokens([str(tmp_path)])]
    assert len(set(tokens)) == 2
    for number in range(os.getpid() - 5, os.getpid() + 5):
        (tmp_path / f".hpc-launch-check-n1-{number}").touch()
    assert check_host.writable(str(tmp_path))["ok"] is True
    check_host.remove(str(tmp_path / "removed by another user"))


@pytest.mark.parametrize(("address", "own"), [("127.0.0.1", True), ("::1", True), ("192.0.2.7", False)])
def test_an_address_that_leads_to_the_node_itself(address: str, own: bool) -> None:
    assert check_host.is_own(address) is own


def test_a_bridge_that_every_node_has_leads_to_the_node_itself() -> None:
    """Its address, as docker0's, is not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        address = probe.getsockname()[0]
    assert check_host.is_own(address)


def test_a_folder_that_the_training_creates_need_not_exist(tmp_path: Path) -> None:
    assert check_host.writable(str(tmp_path / "not" / "yet"))["ok"] is True
    assert list(tmp_path.iterdir()) == []
    assert node_check.folder_checks({}) == {}


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
