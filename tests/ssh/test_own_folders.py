"""Runs on hosts that share no folders: what they get, and what comes back while the run lives."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.faults import wait_until
from tests.ssh.ssh_user import SshUser

LAUNCHER = """\
#!/bin/bash
# In place of Python: what torchrun would do on a node.
[ "$2" = torch.distributed.run ] || exec python3 "$@"
echo "node $HPC_LAUNCH_NODE begins in $PWD with $(cat data/words) and $(cat "$HPC_LAUNCH_CODE/train.py")"
echo "$SECRET_WORD" >/tmp/secret-$HPC_LAUNCH_RUN_NAME
mkdir -p "$HPC_LAUNCH_ATTEMPT_DIR/logs/ranks-of-node-$HPC_LAUNCH_NODE/none/0"
echo mine >"$HPC_LAUNCH_ATTEMPT_DIR/logs/ranks-of-node-$HPC_LAUNCH_NODE/none/0/stdout.log"
for ((i = 0; i < 300; i++)); do [ -e go ] || [ -e "$HPC_LAUNCH_STOP_FILE" ] || sleep 0.2; done
[ ! -e "$HPC_LAUNCH_STOP_FILE" ] || echo "node $HPC_LAUNCH_NODE was asked to stop"
echo "node $HPC_LAUNCH_NODE ends"
[ "$HPC_LAUNCH_NODE" != "$FAILS" ] || exit 7
"""


class Hosts:
    """The first host as the client's machine, where the run folder and the working folder are."""

    def __init__(self, user: SshUser) -> None:
        self.user = user
        self.folder = Path("/tmp") / user.home.name  # each host has its own
        self.work = self.folder / "work"
        user.profile("hosts: {n1: 1, n2: 1}\n  shared_folders: false")
        self.python = user.cluster.write(user.home / "python", LAUNCHER, mode=0o755)
        self.on(
            "n1",
            f"mkdir -p {self.work}/data && cd {self.work} && echo some words >data/words && echo a program >train.py",
        )
        self.on("n1", f"cd {self.work} && mkdir .git && touch .git/HEAD .env")

    def on(self, node: str | None, line: str) -> str:
        """What a shell of the user on a host prints."""
        done = self.user.cluster.run(["bash", "-c", line], node=node)
        return done.stdout + done.stderr

    def launch(self, *words: str, client: str | None = "n1") -> subprocess.CompletedProcess[str]:
        return self.user.launch(*words, env={"SECRET_WORD": "hidden"}, node=client)

    def submit(
        self, *words: str, fails: str = "", client: str | None = "n1", **keys: Any
    ) -> subprocess.CompletedProcess[str]:
        job = {
            "name": "own",
            "nodes": 2,
            "script": str(self.work / "train.py"),
            "workdir": str(self.work),
            "run_dir": str(self.folder / "runs"),
            "code": {"copy_workdir": True},
            "environment": {"python": str(self.python)},
            "env": {"FAILS": fails},
            "secrets": ["SECRET_WORD"],
            "retry": {"max_attempts": 1},
        }
        return self.launch("submit", self.user.job(yaml.safe_dump({**job, **keys})), *words, client=client)

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.launch("status", "@last", "--json").stdout)
        return answer

    def log(self) -> str:
        return self.launch("logs", "@last").stdout

    def batch_log(self) -> str:
        return self.on("n1", f"cat {self.folder}/runs/*/attempts/001/batch.log")

    def until(self, *states: str) -> dict[str, Any]:
        wait_until(lambda: self.status()["state"] in states, explain=self.batch_log, timeout=40, every=0.5)
        return self.status()


@pytest.fixture
def hosts(user: SshUser) -> Iterator[Hosts]:
    hosts = Hosts(user)
    yield hosts
    for node in ("n1", "n2", None):
        hosts.on(node, f"rm -rf {hosts.folder} /tmp/secret-own-*")


def test_each_host_gets_the_run_and_its_logs_come_back_while_it_lives(hosts: Hosts) -> None:
    done = hosts.submit(preflight="quick", args={"data": f"{hosts.work}/.env"})
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: "node 1 begins" in hosts.log(), explain=hosts.batch_log, timeout=40, every=0.5)
    log = hosts.log()
    for node in ("0", "1"):
        assert f"node {node} begins in {hosts.work} with some words and a program" in log
    assert hosts.on("n2", f"ls -A {hosts.work}").split() == ["data", "train.py"]
    assert hosts.on("n2", "cat /tmp/secret-own-*") == "hidden\n"
    wait_until(lambda: not hosts.on("n2", f"ls {hosts.folder}/runs/*/attempts/001/environment 2>/dev/null"), timeout=5)
    hosts.on("n1", f"cd {hosts.folder}/runs/*/attempts/001 && touch stop")
    status = hosts.until("COMPLETED")
    assert status["attempts"][0]["nodes"] == ["n1", "n2"]
    assert set(re.findall(r"node \d was asked to stop", hosts.log())) == {f"node {n} was asked to stop" for n in (0, 1)}
    files = hosts.on(
        "n1", f"cd {hosts.folder}/runs/*/attempts/001 && cat logs/node-1.exit logs/ranks-of-node-1/none/0/*"
    )
    assert files == "0\nmine\n"
    batch_log = hosts.batch_log()
    assert "each host that shares no folders gets a copy of the run" in batch_log
    assert "node check: 2 nodes passed" in batch_log
    assert f"node check: on 1 of 2 nodes: n2: {hosts.work}/.env: No such file" in batch_log
    hosts.user.nothing_left()


def of_client(user: SshUser) -> dict[str, Any]:
    """Keys of a job that is submitted on a host which has a /tmp of its own, too."""
    user.job("some words\n", "data/words")
    script = user.job("a program\n", "train.py")
    return {"client": None, "script": script, "workdir": str(user.home), "code": "auto"}


def test_a_client_that_shares_no_folder_gives_the_run_to_the_first_host(hosts: Hosts) -> None:
    user = hosts.user
    user.job("", "go")
    done = hosts.submit("--wait", fails="1", retry={"max_attempts": 2}, **of_client(user))
    assert done.returncode == 1, done.stdout + done.stderr
    status = user.status()
    (attempt,) = status["attempts"]
    assert (status["state"], attempt["nodes"], attempt["class"]) == ("FAILED", ["n1", "n2"], "user_code_error")
    assert "node 1 begins" in user.launch("logs", "@last").stdout
    log = hosts.batch_log()
    assert "node-1 was the first to fail, with exit code 7" in log
    assert "its part of the job" not in log
    user.nothing_left()


@pytest.mark.prove
def test_a_client_that_shares_no_folder_cancels(hosts: Hosts) -> None:
    user = hosts.user
    assert hosts.submit(**of_client(user)).returncode == 0
    wait_until(lambda: "node 1 begins" in user.launch("logs", "@last").stdout, explain=hosts.batch_log, timeout=40)
    assert re.search(r"own-\S+ +(STARTING|RUNNING) ", user.launch("list").stdout)
    assert user.launch("cancel", "@last").returncode == 0
    user.until("@last", "CANCELLED")
    user.nothing_left()


@pytest.mark.prove
def test_the_run_moves_to_another_first_host_with_its_records(hosts: Hosts) -> None:
    hosts.on("n1", f"touch {hosts.work}/go")
    hosts.on("n2", f"mkdir -p {hosts.work}/data && cd {hosts.work} && touch go data/words train.py")
    assert hosts.submit("--wait", nodes=1, fails="0").returncode == 1
    assert hosts.launch("resubmit", "@last", "--exclude", "n1", "--wait").returncode == 1
    assert [attempt["nodes"] for attempt in hosts.status()["attempts"]] == [["n1"], ["n2"]]
    assert hosts.on("n2", f"ls {hosts.folder}/runs/*/attempts").split() == ["001", "002"]
    hosts.user.nothing_left()


@pytest.mark.prove
def test_what_a_host_writes_without_a_connection_comes_later(hosts: Hosts) -> None:
    hosts.submit()
    wait_until(lambda: "node 1 begins" in hosts.log(), explain=hosts.batch_log, timeout=40, every=0.5)
    hosts.on("n1", "pkill -KILL -u $UID -f '[s]sh: /tmp/hpc-launch-ssh-.*-copies-.*mux'")
    hosts.on("n2", f"touch {hosts.work}/go")
    hosts.on("n1", f"sleep 2 && touch {hosts.work}/go")
    hosts.until("COMPLETED")
    assert "node 1 ends" in hosts.log()
    hosts.user.nothing_left()


def test_a_host_that_has_no_run_folder_is_asked_for_its_lease(user: SshUser) -> None:
    words = ["python3", "-m", "hpc_launch.schedulers.ssh.ssh_hosts", "check", "/tmp/nowhere/run", "n2", "n1"]
    lease = f"hpc-launch.lease.n1.{user.cluster.uid}.ssh-7"
    text = json.dumps({"run": "other-run", "job_id": "ssh-7", "since": 1.0})
    user.cluster.run(["bash", "-c", f"cat >/dev/shm/{lease}"], node="n1", input=text)
    done = user.cluster.run(words, node="n2")
    user.cluster.run(["rm", f"/dev/shm/{lease}"], node="n1")
    (found,) = map(json.loads, done.stdout.splitlines())
    assert re.match(r"n1: n1 is in use by .*: run other-run, job ssh-7", found["message"]), done.stdout + done.stderr


def test_a_host_that_cannot_have_a_copy_is_named(hosts: Hosts) -> None:
    hosts.on("n2", f"mkdir -p {hosts.folder} && touch {hosts.folder}/runs")
    assert hosts.submit("--wait").returncode == 1
    log = hosts.batch_log()
    assert re.search(f"n2 has no copy of the run: .*{hosts.folder}/runs", log), log
    assert "not all hosts have a copy of the run; nothing was started" in log
    hosts.user.nothing_left()
