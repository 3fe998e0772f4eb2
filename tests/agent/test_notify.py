"""The program that sends messages about a run, as a process of its own, against a real webhook."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.agent.notify_event import due
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.status.tracker import notify_problems
from tests.agent.program import altered, program
from tests.busy import patience
from tests.cluster.faults import wait_until
from tests.receiver import Receiver, receiver

HOSTILE = "<!channel> @all ``` [x](http://evil) \x1b[31m\u202e\nTitle: forged\r\n\r\n" + "x" * 5000


@pytest.fixture(scope="module")
def webhook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def event(kind: str = "end", form: str = "json", **facts: Any) -> dict[str, Any]:
    channels = {"webhook": {"secret": "HOOK", "format": form}}
    return {"event": kind, "run": "tiny-1", "time": time.time(), "channels": channels, **facts}


def recorded(folder: Path, name: str = "end-1", **facts: Any) -> Path:
    (folder / "notify").mkdir(exist_ok=True)
    (folder / "notify" / f"{name}.json").write_text(json.dumps(event(**{"kind": name.partition("-")[0], **facts})))
    return folder


def deliver(folder: Path, url: str, limit_s: float = 10.0) -> None:
    words = [*altered("notify", LIMIT_S=limit_s), "deliver", str(folder)]
    subprocess.run(words, env={**os.environ, "HOOK": url}, check=True, timeout=patience(60))


def result(folder: Path, number: int = 1, name: str = "end-1") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((folder / "notify" / f"{name}.webhook.{number}").read_text())
    return answer


def test_many_senders_send_once(tmp_path: Path, webhook: Receiver) -> None:
    recorded(tmp_path, state="COMPLETED")
    before = len(webhook.bodies())
    words = [*program("notify"), "deliver", str(tmp_path)]
    senders = [subprocess.Popen(words, env={**os.environ, "HOOK": webhook.url("ok")}) for _ in range(4)]
    assert [sender.wait(patience(60)) for sender in senders] == [0] * 4
    assert len(webhook.bodies()) == before + 1
    assert result(tmp_path)["state"] == "sent"
    assert notify_problems(RunFolder(tmp_path)) == []


@pytest.mark.parametrize(
    ("path", "state", "why"),
    [
        ("broken", "failed", "the webhook answered with HTTP status 503"),
        ("elsewhere", "failed", "the webhook answered with HTTP status 307: a redirect, which is not followed"),
        ("silent", "unknown", "no answer within"),
        ("dripping", "unknown", "no answer within"),
        ("huge", "sent", ""),
        ("garbage", "failed", "no valid answer (BadStatusLine)"),
    ],
)
def test_a_webhook_that_misbehaves(tmp_path: Path, webhook: Receiver, path: str, state: str, why: str) -> None:
    recorded(tmp_path)
    start, accepted = time.monotonic(), len(webhook.bodies())
    deliver(tmp_path, webhook.url(path), 0.5)
    assert time.monotonic() - start < patience(5)
    assert result(tmp_path)["state"] == state
    assert result(tmp_path)["why"].startswith(why)
    assert len(webhook.bodies()) == accepted  # nobody else got it
    problems = notify_problems(RunFolder(tmp_path))
    assert len(problems) == (state != "sent")
    everything = "".join(file.read_text() for file in (tmp_path / "notify").iterdir()) + "".join(problems)
    assert "token-in-the-address" not in everything
    assert str(webhook.port) not in everything


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://127.0.0.1:{port}/token-in-the-address", "TLS error"),
        ("http://127.0.0.1:1/token-in-the-address", "connection refused"),
        ("http://no-such-host.invalid/token-in-the-address", "the host of the webhook cannot be found"),
        ("file:///etc/passwd", "the secret holds no http:// or https:// address"),
        ("http://[token-in-the-address", "no valid answer (ValueError)"),
        ("http://a b\nc/token-in-the-address", "no valid answer (InvalidURL)"),
    ],
)
def test_an_address_that_does_not_work(tmp_path: Path, webhook: Receiver, url: str, why: str) -> None:
    recorded(tmp_path)
    deliver(tmp_path, url.format(port=webhook.port))
    assert result(tmp_path)["state"] == "failed"
    assert why in result(tmp_path)["why"]
    assert "token" not in result(tmp_path)["why"]


@pytest.mark.parametrize(("name", "again"), [("end-1", 2), ("first_step", None)])
def test_a_sender_that_is_killed(tmp_path: Path, webhook: Receiver, name: str, again: int | None) -> None:
    """What tells of an end may come twice; the rest may not come."""
    recorded(tmp_path, name)
    words = [*altered("notify", LIMIT_S=30), "deliver", str(tmp_path)]
    count = len(webhook.bodies("silent"))
    sender = subprocess.Popen(words, env={**os.environ, "HOOK": webhook.url("silent")}, start_new_session=True)
    webhook.wait_for(count + 1, "silent")
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) in shown
    assert "token-in-the-address" not in shown
    os.killpg(sender.pid, signal.SIGKILL)
    sender.wait()
    assert result(tmp_path, name=name)["state"] == "sending"
    what = json.loads((tmp_path / "notify" / f"{name}.json").read_text())
    assert due(str(tmp_path), name, what, "webhook") is None  # its sender may be alive
    claim = tmp_path / "notify" / f"{name}.webhook.1"
    os.utime(claim, (time.time() - 200, time.time() - 200))
    assert due(str(tmp_path), name, what, "webhook") == again
    count = len(webhook.bodies())
    deliver(tmp_path, webhook.url("ok"))
    assert len(webhook.bodies()) == count + (again is not None)


def test_a_failed_message_is_tried_again_for_a_while(tmp_path: Path, webhook: Receiver) -> None:
    recorded(tmp_path)
    for number in range(1, 5):
        (tmp_path / "notify" / f"end-1.webhook.{number}").write_text(json.dumps({"state": "failed", "why": "x"}))
    count = len(webhook.bodies("broken"))
    deliver(tmp_path, webhook.url("broken"))  # too early
    assert len(webhook.bodies("broken")) == count
    os.utime(tmp_path / "notify" / "end-1.webhook.4", (0, 0))
    deliver(tmp_path, webhook.url("broken"))
    assert "(try 5 of 5)" in notify_problems(RunFolder(tmp_path))[0]
    os.utime(tmp_path / "notify" / "end-1.webhook.5", (0, 0))
    deliver(tmp_path, webhook.url("broken"))
    assert len(webhook.bodies("broken")) == count + 1
    old = {**event(), "time": time.time() - 2 * 86400}
    assert due(str(tmp_path), "end-2", old, "webhook") is None


@pytest.mark.parametrize("form", ["slack", "mattermost", "teams", "ntfy", "json"])
def test_hostile_text_is_plain_text(tmp_path: Path, webhook: Receiver, form: str) -> None:
    recorded(tmp_path, kind="stop", form=form, reason=HOSTILE, cause=HOSTILE, state="STOPPED", look="hpc-launch why x")
    deliver(tmp_path, webhook.url("ok"))
    _, headers, body = webhook.messages[-1]
    assert len(body) < 6000
    assert "hpc-launch why x" in body
    assert "\x1b" not in body
    assert "\u202e" not in body
    assert "\nTitle: forged" not in body
    if form == "ntfy":
        assert headers["Title"] == "hpc-launch: tiny-1 stopped: a person must act"
        return
    parsed = json.loads(body)
    if form == "slack":
        assert "<" not in parsed["text"]
        assert parsed["unfurl_links"] is False
    elif form == "mattermost":
        assert parsed["text"].count("```") == 2
        assert "@all" not in parsed["text"]
    elif form == "teams":
        (card,) = parsed["attachments"]
        assert {block["type"] for block in card["content"]["body"]} == {"RichTextBlock"}
    else:
        assert parsed["state"] == "STOPPED"
        assert "channels" not in parsed


def test_a_command_gets_the_event_and_no_address(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["bash", "-c", f"cat; env | grep -c HOOK >>{out}; cat >>{out}"]
    task = {**event(), "channels": {"webhook": {"secret": "HOOK", "format": "json"}, "command": command}}
    words = [*program("notify"), "test"]
    done = subprocess.run(
        words,
        input=json.dumps(task),
        env={**os.environ, "HOOK": "http://127.0.0.1:1/"},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["command"] == {"state": "sent", "why": ""}
    assert answer["webhook"]["why"] == "connection refused"
    assert out.read_text().startswith("0\n")


@pytest.mark.parametrize(
    ("words", "state", "why"),
    [
        (["/no/such/program"], "failed", "cannot start: No such file or directory"),
        (["bash", "-c", "exit 3"], "failed", "the command ended with exit code 3"),
        (["bash", "-c", "sleep 30 & sleep 30"], "unknown", "stopped after"),
    ],
)
def test_a_command_that_does_not_work(words: list[str], state: str, why: str) -> None:
    task = {**event(), "channels": {"command": words}}
    start = time.monotonic()
    done = subprocess.run(
        [*altered("notify", LIMIT_S=0.5), "test"], input=json.dumps(task), capture_output=True, text=True, check=True
    )
    assert time.monotonic() - start < patience(5)
    answer = json.loads(done.stdout)["command"]
    assert answer["state"] == state
    assert answer["why"].startswith(why)


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The folder of an attempt whose job notes its messages in a file."""
    attempt = tmp_path / "tiny-1" / "attempts" / "001"
    (attempt / "logs").mkdir(parents=True)
    channels = {"webhook": None, "command": ["bash", "-c", f"cat >>{tmp_path}/messages"]}
    events = ["start", "first_step", "end", "stop", "no_progress"]
    notify = {"events": events, "no_progress_s": 1, "each_point": False, "channels": channels}
    progress = {"step": r"step (\d+)/(\d+)", "loss": r"loss ([\d.]+)"}
    plan = {"site": "test", "scheduler": "slurm", "progress": progress, "notify": notify}
    (attempt / "plan.json").write_text(json.dumps(plan))
    (attempt / "start.json").write_text(json.dumps({"job_id": "7", "nodes": "n1"}))
    return attempt


def messages(folder: Path) -> list[dict[str, Any]]:
    file = folder / "messages"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(folder: Path, *kinds: str) -> None:
    wait_until(
        lambda: [one["event"] for one in messages(folder)] == list(kinds), patience(15), lambda: str(messages(folder))
    )


def follower(attempt: Path, parent: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*program("notify"), "job", str(attempt), str(parent)])


def test_with_roles_it_sees_the_log_of_the_one_that_ends_the_job(attempt: Path, tmp_path: Path) -> None:
    (attempt / "roles" / "train" / "logs").mkdir(parents=True)
    (attempt / "roles" / "main").symlink_to("train")
    (attempt / "roles" / "train" / "logs" / "node-0.log").write_text("step 5/10\n")
    role = {"name": "server", "state": "ready", "ready_since": 1.0, "restarts": 1, "exit_code": None}
    (attempt / "roles.json").write_text(json.dumps({"roles": [role], "failed": None}))
    process = follower(attempt, os.getpid())
    try:
        wait_until(lambda: len(messages(tmp_path)) > 1, patience(15), lambda: str(messages(tmp_path)))
    finally:
        process.kill()
        process.wait()
    first = messages(tmp_path)[1]
    assert (first["event"], first["step"]) == ("first_step", 5)
    assert re.fullmatch(r"server ready since \d\d:\d\d:01, restarts: 1", first["roles"])


def test_what_the_job_itself_sees(attempt: Path, tmp_path: Path) -> None:
    log = attempt / "logs" / "node-0.log"
    process = follower(attempt, os.getpid())
    wait_for(tmp_path, "start", "no_progress")  # nothing at all so far
    log.write_text("loading\n[rank0]: step 5/10, loss 0.25\n")
    wait_for(tmp_path, "start", "no_progress", "first_step", "no_progress")
    with log.open("a") as stream:
        stream.write("still waiting\n" * 3)  # output is no progress
    time.sleep(1.5)
    assert len(messages(tmp_path)) == 4
    last = messages(tmp_path)[-1]
    assert (last["run"], last["job_id"], last["nodes"], last["step"], last["total"]) == ("tiny-1", "7", "n1", 5, 10)
    assert last["loss"] == "0.25"
    assert last["reason"].startswith("no new step for ")
    (attempt / "end.json").write_text("{}")
    assert process.wait(patience(20)) == 0


@pytest.mark.parametrize("late", [False, True])
def test_it_ends_with_the_script(attempt: Path, late: bool) -> None:
    script = subprocess.Popen(["sleep", "0" if late else "1"])
    if late:
        script.wait()
    process = follower(attempt, script.pid)
    script.wait()
    assert process.wait(patience(20)) == 0


def test_a_slow_pattern_ends_the_search_only(attempt: Path, tmp_path: Path) -> None:
    plan = json.loads((attempt / "plan.json").read_text())
    plan["progress"]["step"] = r"(a+)+$"
    (attempt / "plan.json").write_text(json.dumps(plan))
    (attempt / "logs" / "node-0.log").write_text("a" * 1999 + "b\n")
    (attempt / "end.json").write_text(json.dumps({"warned": None}))
    subprocess.run([*program("notify"), "end", str(attempt), "0"], check=True, timeout=patience(20))
    assert sorted(one["event"] for one in messages(tmp_path)) == ["end", "start"]


@pytest.mark.parametrize(
    ("code", "file", "events"),
    [
        (0, None, ["start", "end"]),
        (143, "cancel.json", ["start", "end"]),
        (1, None, ["left", "start"]),
        (1, "verdict.json", ["start"]),
        (1, "successor.json", ["start"]),
        (1, "../002", ["start"]),
    ],
)
def test_the_end_of_a_job(attempt: Path, tmp_path: Path, code: int, file: str | None, events: list[str]) -> None:
    (attempt / "end.json").write_text(json.dumps({"warned": None}))
    if file is not None:
        (attempt / file).write_text("{}")
    subprocess.run([*program("notify"), "end", str(attempt), str(code)], check=True)
    assert sorted(one["event"] for one in messages(tmp_path)) == sorted(events)
