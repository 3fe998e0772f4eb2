"""The node check over real ssh: each planted fault is named on the right host, and a healthy job trains."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.own_program import job_of
from tests.ssh.ssh_user import SshUser

PROGRAM = "import os\nopen(os.environ['HPC_LAUNCH_ATTEMPT_DIR'] + '/trained', 'w').close()\n"
HOSTS = "hosts: {n1: 2, n2: 2, n3: 1}"
PORT = 20123
PEER_PORT = 32768 + PORT * 7919 % 28232
"""What the nodes listen at beside the port of the rendezvous (agent/check_ssh.py)."""


@pytest.fixture
def checked(user: SshUser) -> SshUser:
    user.profile(HOSTS, preflight="quick")
    return user


job = partial(job_of, program=PROGRAM, launcher="none", nodes=3)


def attempt(user: SshUser) -> Path:
    """The folder of the only attempt."""
    return next(user.home.glob("runs/*/attempts/001"))


def record(user: SshUser) -> dict[str, Any]:
    """What the node check found."""
    found: dict[str, Any] = json.loads((attempt(user) / "node-check.json").read_text())
    return found


@contextmanager
def planted(user: SshUser, *faults: tuple[str, str, str]) -> Iterator[None]:
    """Faults of hosts: commands of root, and those that undo them."""
    try:
        for node, plant, _ in faults:
            as_root(user, node, plant)
        yield
    finally:
        for node, _, undo in faults:
            as_root(user, node, undo, check=False)


def blocked(node: str) -> str:
    """A rule that drops what goes to a node from here, at one port."""
    return f"to 10.77.0.{node[1:]} ipproto tcp dport {PEER_PORT} blackhole"


def as_root(user: SshUser, node: str, commands: str, *, check: bool = True) -> None:
    done = user.cluster.run(["bash", "-ec", commands], user="root", node=node)
    assert done.returncode == 0 or not check, done.stderr


def test_healthy_hosts_pass_and_the_training_starts(checked: SshUser) -> None:
    checked.completed(job(checked))
    assert (record(checked)["nodes"], record(checked)["bad"], record(checked)["common"]) == (3, [], [])
    assert (attempt(checked) / "trained").exists()
    assert not (attempt(checked) / "environment").exists()
    checked.nothing_left()


def test_each_host_is_logged_in_to_once_for_check_node_check_and_training(checked: SshUser) -> None:
    program = "import os\nprint('FROM', os.uname().nodename, os.environ['SSH_CONNECTION'])\n"
    log = checked.completed(job_of(checked, program, "srun", nodes=3))
    logins = set(re.findall(r"FROM (n\d) \S+ (\d+)", log))
    assert len(logins) == 3, log
    for node, port in logins:
        said = (checked.cluster.layout.root / "ssh" / f"{node}.log").read_text()
        assert len(re.findall(rf"Starting session: command for \S+ from \S+ port {port} ", said)) == 3, said


def test_faults_are_named_on_their_hosts_before_the_training(checked: SshUser) -> None:
    """Faults that only this test notices, because others use the hosts, too."""
    checked.profile(HOSTS, preflight="quick", more=f"network: {{ports: [{PORT}, {PORT}]}}\n")
    data, code = Path(checked.job("", "data/part")), checked.job("pass\n", "helper.py")
    text = job(checked, args={"data": str(data)}, code="off")
    changed = "/dev/shm/helper"
    faults = (
        ("n2", f"mount -t tmpfs none {data.parent}", f"umount {data.parent}"),
        ("n2", f"echo '# new' >{changed}; mount --bind {changed} {code}", f"umount {code}; rm {changed}"),
        ("n3", f"ip rule add {blocked('n2')}", f"ip rule del {blocked('n2')}"),
    )
    with planted(checked, *faults):
        done = checked.launch("submit", text, "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    found = record(checked)
    assert {(one["node"], one["check"]): one["text"] for one in found["bad"]} == {
        ("n2", "code"): "the code differs from that of the other nodes: helper.py",
        ("n3", "ports between nodes"): f"cannot connect to n2 port {PEER_PORT}: Invalid argument; n2 can connect to n3",
    }
    assert f"n2: {data}: No such file or directory" in found["common"][0]["text"]
    assert not (attempt(checked) / "trained").exists()
    assert "n3: cannot connect to n2" in checked.launch("why", "@last").stdout
    checked.nothing_left()


def test_doctor_names_the_hosts_that_ssh_does_not_reach(user: SshUser) -> None:
    user.profile("hosts: {n1: 1, missing-host: 1}")
    done = user.launch("doctor", job(user, nodes=2), "--json")
    assert done.returncode == 3, done.stdout + done.stderr
    last = json.loads(done.stdout)[-1]
    assert (last["name"], last["state"]) == ("hosts", "failed")
    [problem] = last["values"]["problems"]
    assert problem["host"] == "missing-host"
    assert problem["message"].startswith("HL663 cannot reach missing-host over ssh from n1: ")
