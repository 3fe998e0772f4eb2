"""Runs over ssh that lose something: the client that waits, a host, a spare or a process, or that it detaches from."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import pytest
import yaml

from tests.busy import patience
from tests.cluster.faults import wait_until
from tests.marks import prove
from tests.prove.ssh_kills import KINDS, QUICK, play
from tests.ssh.ssh_user import SshUser

PROGRAM = 'touch "$HPC_LAUNCH_ATTEMPT_DIR/began-0"; exec sleep 300'


def waiting_client(user: SshUser, node: str | None = None) -> subprocess.Popen[str]:
    """`submit --wait` of a run that has begun, on the login node or on a host."""
    wanted = {"name": "waits", "nodes": 2, "launcher": "none", "command": ["bash", "-c", PROGRAM], "hang": False}
    words = ["hpc-launch", "submit", user.job(yaml.safe_dump(wanted)), "--wait"]
    client = user.cluster.popen(words, cwd=user.home, env=user.env, node=node)
    wait_until(lambda: bool(user.processes("n1", "attached_run")), timeout=patience(60))
    wait_until(lambda: bool(list(user.home.glob("runs/*/attempts/001/began-0"))), timeout=patience(60))
    return client


@pytest.mark.parametrize("node", [None, prove("n1")])
def test_a_run_ends_with_the_client_that_waits_for_it(user: SshUser, node: str | None) -> None:
    client = waiting_client(user, node)
    client.kill()
    user.nothing_left(patience(15))
    client.communicate()
    status = user.status()
    assert (status["state"], len(status["attempts"])) == ("CANCELLED", 1)
    assert status["reason"].startswith(f"cancelled by the end of the client on {node or 'login'}")


def test_ctrl_c_detaches_from_the_run(user: SshUser) -> None:
    client = waiting_client(user)
    client.send_signal(signal.SIGINT)
    output = client.communicate(timeout=patience(30))
    assert client.returncode == 130, output
    assert "the job keeps running" in output[1]
    assert "hpc-launch watch" in output[1]
    wait_until(lambda: not user.processes("n1", "attached_run"), timeout=patience(15))
    time.sleep(1)
    assert user.status()["state"] in {"STARTING", "RUNNING"}
    assert user.launch("cancel", "@last").returncode == 0
    user.nothing_left()


# --- Something is killed; `make prove` plays the other kinds by the same code ---

SEED = int(os.environ.get("HPC_LAUNCH_PROVE_SEED", "4"))


@pytest.mark.parametrize("kind", random.Random(SEED).sample(QUICK, 1))
def test_nothing_is_left_of_a_run_and_it_says_why(user: SshUser, kind: str) -> None:
    node = random.Random(SEED).choice(KINDS[kind][0] or ("n1",))
    assert play(user, SEED, kind, node)[0] == []


# --- Spares: hosts that the job leases besides, for the next attempt ---

KEYS = {"name": "held", "nodes": 2, "spares": 1, "launcher": "srun", "retry": {"max_attempts": 1}}


def submit(user: SshUser, until: str, **keys: object) -> str:
    """The name of a run on n1 and n2 that holds n3 and goes on until a condition of bash is true."""
    user.profile("hosts: {n1: 1, n2: 1, n3: 1}", shared=False)
    command = ["bash", "-c", f"until {until}; do sleep 0.2; done"]
    run = user.submit(yaml.safe_dump({**KEYS, "command": command, **keys}))["run"]
    wait_until(lambda: len(list(user.home.glob("runs/*/attempts/001/logs/node-*.began"))) == 2, every=0.5)
    wait_until(lambda: any(user.home.glob("runs/*/attempts/001/spares/0.began")), every=0.5)
    return str(run)


def batch_log(user: SshUser, attempt: int) -> str:
    (path,) = user.home.glob(f"runs/*/attempts/{attempt:03d}/batch.log")
    return path.read_text()


@pytest.mark.usefixtures("leases")
def test_a_spare_is_leased_and_its_loss_ends_nothing(user: SshUser) -> None:
    run = submit(user, f"[ -e '{user.home / 'go'}' ]")
    user.profile("hosts: {n4: 1, n3: 1}", shared=False)
    refused = user.launch("submit", user.job(yaml.safe_dump({**KEYS, "nodes": 1, "command": "true"})))
    assert refused.returncode == 4, refused.stdout + refused.stderr
    assert f"n3 is in use by {user.cluster.user}: run {run}" in refused.stderr
    user.kill("n3", "sshd")
    wait_until(lambda: "the job goes on without the spare n3: the connection ended" in batch_log(user, 1), every=0.5)
    user.job("", "go")
    (only,) = user.until(run, "COMPLETED", "FAILED", "STOPPED")["attempts"]
    assert (only["class"], only["nodes"]) == ("success", ["n1", "n2"]), batch_log(user, 1)
    assert "holds 1 of 1 spares: n3\n" in batch_log(user, 1)
    user.nothing_left()


@pytest.mark.usefixtures("leases")
@pytest.mark.prove
def test_a_spare_takes_the_place_of_a_host_that_is_lost(user: SshUser) -> None:
    run = submit(user, "[ $HPC_LAUNCH_ATTEMPT = 2 ]", retry={"max_attempts": 2, "backoff": {"first": 0}})
    user.kill("n2", "sshd")
    attempts = user.until(run, "COMPLETED", "FAILED", "STOPPED")["attempts"]
    assert [(one["nodes"], one["class"]) for one in attempts] == [
        (["n1", "n2"], "node_failure"),
        (["n1", "n3"], "success"),
    ]
    assert "holds 0 of 1 spares: no other host is left\n" in batch_log(user, 2)
    user.nothing_left()
