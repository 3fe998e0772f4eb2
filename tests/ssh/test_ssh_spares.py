"""Spares over ssh: hosts that the job leases besides, for the next attempt."""

from __future__ import annotations

import pytest
import yaml

from tests.cluster.faults import wait_until
from tests.ssh.ssh_user import SshUser

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
