"""Copies on hosts that share no folders: what is sent, and what the first host accepts from a host."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent.copy_channel import Channel, LostError
from hpc_launch.agent.copy_connection import Copy, HostCopy
from hpc_launch.agent.copy_list import TooLargeError, run_root, workdir_root
from hpc_launch.agent.copy_protocol import FIRST_HOST, Frames, RefusedError, frame
from hpc_launch.agent.copy_receive import Receiver
from hpc_launch.agent.copy_send import Sender
from hpc_launch.agent.copy_store import Store


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt folder with a file outside."""
    folder = tmp_path / "run" / "attempts" / "001"
    for name in ("logs", "agent/stacks"):
        (folder / name).mkdir(parents=True)
    (tmp_path / "outside").write_text("mine")
    return folder


def growth(path: object, data: bytes = b"x", at: object = 0) -> tuple[dict[str, Any], bytes]:
    return {"is": "growth", "path": path, "at": at}, data


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/outside",
        "logs/../../outside",
        "logs/node-1.log\n",
        "logs/node-0.exit",
        "logs/node-11.exit",
        "logs/ranks-of-node-1/../node-0.log",
        "logs/ranks-of-node-1/.hidden",
        "logs/ranks-of-node-0/launcher.json",
        "agent/node-0.jsonl",
        "end.json",
        "verdict.json",
        "script.sh",
        "claim",
        "",
        7,
        None,
        ["logs/node-1.log"],
    ],
)
def test_a_host_writes_only_its_own_files(attempt: Path, path: object) -> None:
    with pytest.raises(ValueError, match="unexpected frame"):
        Store(str(attempt), 1).take(*growth(path))
    with pytest.raises(ValueError, match="unexpected frame"):
        Store(str(attempt), 1).take({"is": "mark", "path": str(path)}, b"x")


def test_a_host_appends_in_order_and_begins_again(attempt: Path) -> None:
    store = Store(str(attempt), 1)
    log = attempt / "logs" / "node-1.log"
    store.take(*growth("logs/node-1.log", b"one\n"))
    store.take(*growth("logs/node-1.log", b"two\n", 4))
    assert log.read_text() == "one\ntwo\n"
    for at in (3, 9, -1, "8", True, None, 1 << 62):
        with pytest.raises(ValueError, match="goes on at"):
            store.take(*growth("logs/node-1.log", b"x", at))
    store.take(*growth("logs/node-1.log", b"new", 0))
    assert log.read_text() == "new"
    with pytest.raises(ValueError, match="goes on at"):
        store.take(*growth("logs/node-1.exit", b"0", 5))


def test_a_host_replaces_no_file_of_another_node_and_follows_no_link(attempt: Path, tmp_path: Path) -> None:
    first, second = Store(str(attempt), 1), Store(str(attempt), 2)
    first.take(*growth("agent/stacks/rank-3.txt", b"stack"))
    with pytest.raises(ValueError, match="belongs to another"):
        second.take(*growth("agent/stacks/rank-3.txt", b"forged"))
    (attempt / "logs" / "node-2.log").symlink_to(tmp_path / "outside")
    (attempt / "logs" / "ranks-of-node-2").symlink_to(tmp_path)
    for path in ("logs/node-2.log", "logs/ranks-of-node-2/outside"):
        with pytest.raises((ValueError, OSError)):
            second.take(*growth(path))
    first.take({"is": "mark", "path": "agent/hang.json"}, b"1")
    second.take({"is": "mark", "path": "agent/hang.json"}, b"2")
    assert (attempt / "agent" / "hang.json").read_text() == "1"
    assert (tmp_path / "outside").read_text() == "mine"


def test_a_host_cannot_say_that_logs_will_grow(attempt: Path) -> None:
    store = Store(str(attempt), 1)
    store.take({"is": "output", "age": 5.0}, b"")
    mark = attempt / "agent" / "last-output"
    assert time.time() - mark.stat().st_mtime == pytest.approx(5, abs=2)
    store.take({"is": "output", "age": 50}, b"")
    assert time.time() - mark.stat().st_mtime < 10
    for age in (-5, "1", None, float("nan"), 1e12):
        with pytest.raises(ValueError, match="no age"):
            store.take({"is": "output", "age": age}, b"")


@pytest.mark.parametrize(
    "text", [b"GET / HTTP\n", b"9999999999 0\n", b"5000000 0\n", b"2 99999999\n", b"2 0\n[}", b"x" * 50]
)
def test_what_is_no_frame_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        list(Frames().feed(text))


def test_frames_arrive_in_any_pieces() -> None:
    sent = [({"is": "a"}, b"1\n2 3\n"), ({"is": "b"}, b""), ({"is": "c"}, bytes(range(256)))]
    text = b"\n" + b"\n\n".join(frame(*one) for one in sent)
    for size in (1, 7, 1000):
        frames, found = Frames(), []
        for at in range(0, len(text), size):
            found += list(frames.feed(text[at : at + size]))
        assert found == sent


def test_what_a_host_writes_arrives_as_it_is(attempt: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in ("logs/ranks-of-node-1/none_x/attempt_0/0", "agent/stacks"):
        (other / name).mkdir(parents=True)
    (other / "logs" / "node-1.log").write_text("a\n" * 300_000)
    (other / "logs" / "node-1.exit").write_text("3\n")
    (other / "logs" / "ranks-of-node-1/none_x/attempt_0/0/stdout.log").touch()
    (other / "agent" / "nccl-rank-1").symlink_to(tmp_path / "outside")
    os.mkfifo(other / "agent" / "node-1.jsonl")
    (other / "done").touch()
    sender, store = Sender(str(other), 1, {}), Store(str(attempt), 1)

    def send() -> list[str]:
        found = [next(iter(Frames().feed(text))) for text in sender.news(True)]
        for one in found:
            store.take(*one)
        return [str(one[0].get("path")) for one in found]

    assert send()[:2] == ["done", "logs/node-1.exit"]
    assert send() == []
    with (other / "logs" / "node-1.log").open("a") as file:
        file.write("end\n")
    assert send() == ["logs/node-1.log"]
    assert Sender(str(other), 1, store.sizes).growth("logs/node-1.log", True) is None  # after a lost connection
    for name in ("logs/node-1.log", "logs/node-1.exit", "logs/ranks-of-node-1/none_x/attempt_0/0/stdout.log", "done"):
        assert (attempt / name).read_bytes() == (other / name).read_bytes()
    assert not (attempt / "agent" / "nccl-rank-1").exists()


def test_only_what_differs_is_sent(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "data").mkdir(parents=True)
    (here / "data" / "words").write_text("some words")
    (here / "run.sh").write_text("echo")
    (here / "run.sh").chmod(0o777)
    (here / "link").symlink_to("data")
    for name in (".env", "id_rsa", "a.pyc", "big.bin"):
        (here / name).touch()
    root = workdir_root(str(here), ["big*"], 1000, str(tmp_path / "runs" / "r"))
    assert [entry[0] for entry in root["entries"]] == ["data/words", "link", "run.sh"]
    root["path"] = str(there)
    receiver = Receiver([root])
    assert receiver.lacking() == [0, 2]
    receiver.take(0, b"some ", False)
    receiver.take(0, b"words", True)
    with pytest.raises(RefusedError, match="did not arrive as it was sent"):
        receiver.take(2, b"evil", True)
    assert Receiver([root]).lacking() == [2]
    receiver.take(2, b"echo", True)
    assert (Receiver([root]).lacking(), (there / "run.sh").stat().st_mode & 0o777) == ([], 0o755)
    assert os.readlink(there / "link") == "data"
    with pytest.raises(TooLargeError, match=r"more than 0 MiB: name what is no code in `code.exclude`"):
        workdir_root(str(here), [], 5, "")


def test_a_copy_goes_into_no_folder_that_others_can_change(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o775)
    with pytest.raises(RefusedError, match="only you can change"):
        Receiver([{"path": str(run), "others": 0o022, "entries": []}])
    tmp_path.chmod(0o777)
    with pytest.raises(RefusedError, match="another user can replace"):
        Receiver([{"path": str(tmp_path / "new"), "others": 0o022, "entries": []}])
    tmp_path.chmod(0o755)


def test_the_run_goes_without_its_logs(attempt: Path) -> None:
    run = attempt.parents[1]
    for name in ("hooks/a.py", "code/train.py", "attempts/001/node.sh", "attempts/001/batch.log", "attempts/001/.x"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    (attempt / "logs" / "node-0.log").touch()
    names = [entry[0] for entry in run_root(str(run), str(attempt))["entries"]]
    assert names == ["hooks/a.py", "code/train.py", "attempts/001/node.sh"]


LIAR = """\
#!/usr/bin/env python3
import os, re, select, sys
mark = "".join(re.findall("[0-9a-f]{16}", sys.stdin.read(1000))[:2])
print("welcome\\n" + mark + "\\n" + open(sys.argv[0] + ".says").read(), end="", flush=True)
while select.select([0], [], [], 1)[0] and os.read(0, 65536):
    pass  # what is written to it must not fail before its answer is read
"""


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a host says, whatever it is sent."""
    ssh = tmp_path / "ssh"
    ssh.write_text(LIAR)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "ssh.says"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("[5000]", "index out of range"),
        ("{}", "connection ended"),
        ('["x"]', "invalid literal"),
        ("7", "not iterable"),
        ("[" * 50_000, "recursion"),
    ],
)
def test_a_host_that_lies_gets_nothing(attempt: Path, says: Path, body: str, problem: str) -> None:
    says.write_bytes(frame({"is": "lacking"}, body.encode()))
    (attempt / FIRST_HOST).touch()
    copy = Copy(str(attempt), "", [run_root(str(attempt.parents[1]), str(attempt))])
    one = HostCopy(copy, "host", 1, threading.Semaphore(1))
    one.run()
    assert problem in one.problem
    assert (one.done.is_set(), one.ready.is_set()) == (True, False)


def test_what_a_lost_connection_said_is_known_when_a_write_finds_it_lost(says: Path) -> None:
    says.with_name("ssh").write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    channel = Channel("host")
    channel.ssh.wait()
    with pytest.raises(LostError):
        channel.write(b"x")
    assert channel.last_words() == ": no route"
    channel.close()
