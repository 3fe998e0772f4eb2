"""Runs over ssh whose client dies, or detaches."""

from __future__ import annotations

import signal
import time

import yaml

from tests.busy import patience
from tests.cluster.faults import wait_until
from tests.ssh.ssh_user import SshUser

PROGRAM = 'touch "$HPC_LAUNCH_ATTEMPT_DIR/began-0"; exec sleep 300'


def job(user: SshUser) -> str:
    wanted = {"name": "waits", "nodes": 2, "launcher": "none", "command": ["bash", "-c", PROGRAM], "hang": False}
    return user.job(yaml.safe_dump(wanted))


def test_a_run_ends_with_the_client_that_waits_for_it(user: SshUser) -> None:
    client = user.popen("submit", job(user), "--wait")
    wait_until(lambda: bool(user.processes("n1", "attached_run")), timeout=patience(60))
    wait_until(lambda: bool(list(user.home.glob("runs/*/attempts/001/began-0"))), timeout=patience(60))
    client.kill()
    user.nothing_left(patience(15))
    client.communicate()
    status = user.status()
    assert (status["state"], len(status["attempts"])) == ("CANCELLED", 1)
    assert status["reason"].startswith("cancelled by the end of the client on login")


def test_ctrl_c_detaches_from_the_run(user: SshUser) -> None:
    client = user.popen("submit", job(user), "--wait")
    wait_until(lambda: bool(user.processes("n1", "attached_run")), timeout=patience(60))
    wait_until(lambda: bool(list(user.home.glob("runs/*/attempts/001/began-0"))), timeout=patience(60))
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
