"""Messages about real jobs on this machine: each once, and the address nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.busy import patience
from tests.here import launch
from tests.receiver import Receiver, receiver

JOB = "name: tiny\nsite: local\nprocesses_per_node: 1\nlauncher: none\nprogress: {step: 'step (\\d+)/(\\d+)'}\n"
NOTIFY = "notify: {webhook: {secret: HOOK}}\n"


class Shell:
    """A project with a webhook."""

    def __init__(self, folder: Path, webhook: Receiver) -> None:
        self.folder, self.webhook = folder, webhook
        self.env = {"HOOK": webhook.url("ok")}

    def call(self, *args: str) -> subprocess.CompletedProcess[str]:
        return launch(self.folder, *args, **self.env)

    def write(self, program: str, notify: str = NOTIFY) -> None:
        (self.folder / "job.yaml").write_text(f"{JOB}command: [bash, -c, {json.dumps(program)}]\n{notify}")

    def events(self, count: int) -> list[dict[str, Any]]:
        """The messages, once so many have come and nothing else does."""
        self.webhook.wait_for(count, seconds=20)
        time.sleep(0.5)
        return [json.loads(body) for body in self.webhook.bodies()]

    def run(self) -> Path:
        (path,) = (path for path in (self.folder / "runs").iterdir() if path.name.startswith("tiny"))
        return path


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with receiver() as webhook:
        yield Shell(tmp_path, webhook)


def test_a_run_that_completes(shell: Shell) -> None:
    shell.write("echo step 3/3; echo the variable is $${HOOK-unset}")

    assert shell.call("submit", "job.yaml", "--wait").returncode == 0

    start, end = sorted(shell.events(2), key=lambda one: str(one["event"]), reverse=True)
    run = shell.run().name
    assert (start["event"], start["run"], start["site"], start["look"]) == (
        "start", run, "local", f"hpc-launch status {run}",
    )  # fmt: skip
    assert (end["event"], end["state"], end["step"], end["total"]) == ("end", "COMPLETED", 3, 3)
    assert end["job_id"].startswith("local-")
    assert "the variable is unset" in (shell.run() / "attempts/001/logs/node-0.log").read_text()
    address = str(shell.webhook.port).encode()
    assert [path for path in shell.run().rglob("*") if path.is_file() and address in path.read_bytes()] == []
    assert shell.call("status", run).returncode == 0
    assert len(shell.events(2)) == 2


def test_a_run_that_is_given_up_while_nobody_looks(shell: Shell) -> None:
    shell.write("echo \"ModuleNotFoundError: No module named 'lib'\" >&2; exit 1", NOTIFY + "retry: {backoff: 1s}\n")

    assert shell.call("submit", "job.yaml").returncode == 0

    (stop,) = (one for one in shell.events(2) if one["event"] != "start")
    assert (stop["event"], stop["state"], stop["failure_class"]) == ("stop", "FAILED", "import_error")
    assert stop["advice"]
    assert stop["look"] == f"hpc-launch why {shell.run().name}"
    shell.call("why", stop["run"])
    shell.call("watch", stop["run"])
    assert len(shell.events(2)) == 2


def test_a_message_that_does_not_arrive_is_shown_and_holds_nothing_up(shell: Shell) -> None:
    shell.env["HOOK"] = shell.webhook.url("broken")
    shell.write("exit 0", NOTIFY)

    done = shell.call("submit", "job.yaml", "--wait")

    assert done.returncode == 0
    run = shell.run()
    shell.webhook.wait_for(2, "broken")
    what = "the message `end` did not reach the webhook: the webhook answered with HTTP status 503 (try 1 of 5)"
    until = time.monotonic() + patience(10)
    while what not in (shown := shell.call("status", run.name).stdout):
        assert time.monotonic() < until, shown
    log = run / "attempts/001/hook.log"
    while not log.exists() or "nothing" not in log.read_text():
        assert time.monotonic() < until + patience(30), shown
        time.sleep(0.1)  # another driver
    time.sleep(0.5)
    os.utime(run / "notify/end-1.webhook.1", (0, 0))
    shell.env["HOOK"] = shell.webhook.url("ok")
    shell.call("status", run.name)
    (end,) = shell.events(1)
    assert end["event"] == "end"
    assert "did not reach" not in shell.call("status", run.name).stdout


def test_a_literal_address_is_refused_and_not_repeated(shell: Shell) -> None:
    shell.write("exit 0", f"notify: {{webhook: {{secret: '{shell.webhook.url('ok')}'}}}}\n")
    done = shell.call("submit", "job.yaml")
    assert done.returncode == 3
    assert "HL551" in done.stderr
    assert "token" not in done.stdout + done.stderr
    del shell.env["HOOK"]
    shell.write("exit 0")
    done = shell.call("submit", "job.yaml")
    assert done.returncode == 3
    assert "the secret HOOK is not set" in done.stderr


def test_a_test_message_shows_whether_the_receivers_work(shell: Shell) -> None:
    shell.write("exit 0", "notify: {webhook: {secret: HOOK, format: slack}, command: [bash, -c, exit 4]}\n")
    done = shell.call("notify", "test", "job.yaml")
    assert done.stdout == "webhook: sent\ncommand: failed, the command ended with exit code 4\n"
    assert done.returncode == 3
    assert [json.loads(body)["text"].splitlines()[0] for body in shell.webhook.bodies()] == [
        "hpc-launch: tiny is a test message"
    ]
    found = json.loads(shell.call("notify", "test", "job.yaml", "--json", "--set", "notify.command=[]").stdout)
    assert found == [{"channel": "webhook", "state": "sent", "why": None}]
    assert not (shell.folder / "runs").exists()
