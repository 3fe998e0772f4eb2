"""The start of hosts over real ssh: nothing lives on when one of them is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.program import archive
from tests.busy import patience
from tests.cluster.faults import wait_until
from tests.marks import prove
from tests.ssh.ssh_user import SshUser

NODE = """\
node=$2
: >"{folder}/logs/node-$node.began"
export HPC_LAUNCH_ATTEMPT_DIR={folder} HPC_LAUNCH_NODE=$node
exec python3 -I {hooks}/agent.pyz on_host bash -c 'exec &>/dev/null; {program}; echo 0 >{folder}/logs/node-'$node.exit
"""


def start(user: SshUser, program: str, *hosts: str) -> subprocess.Popen[str]:
    """Start the agent on n1 with a program for each host, which holds no output of its connection, as a job's."""
    logs, hooks = user.home / "attempt" / "logs", user.home / "hooks"
    user.cluster.run(["mkdir", "-p", str(logs), str(hooks)], check=True)
    shutil.copy(archive(), hooks)
    text = NODE.format(folder=logs.parent, hooks=hooks, program=program)
    user.cluster.write(logs.parent / "node.sh", text)
    command = [sys.executable, "-I", str(hooks / "agent.pyz"), "fan_out", str(logs.parent), *hosts]
    return user.cluster.popen(command, node="n1")


def notes(user: SshUser, kind: str) -> list[Path]:
    return sorted((user.home / "attempt" / "logs").glob(f"node-*.{kind}"))


HOSTS = ("n1", "n2", "n3", "n4")


@pytest.mark.parametrize(("victim", "node"), [("sshd", "n4"), prove("agent.pyz on_host", "n3")])
def test_the_loss_of_a_host_ends_all_and_is_named(user: SshUser, victim: str, node: str) -> None:
    process = start(user, "sleep 300", *HOSTS)
    wait_until(lambda: len(notes(user, "began")) == 4, explain=lambda: str(process.poll()), timeout=patience(60))
    user.kill(node, victim)
    user.nothing_left(patience(15))
    output = process.communicate(timeout=patience(30))
    assert f"{node}: the connection ended with code 255" in output[1], output  # also of a host whose agent is killed
    assert process.returncode == 255
    assert [path.name for path in notes(user, "exit")] == [f"node-{int(node[1:]) - 1}.exit"]


def test_the_end_of_a_job_waits_for_no_session_that_shares_a_connection(user: SshUser) -> None:
    host, config = f"muxed-{os.getpid()}", user.cluster.home / ".ssh" / "config"
    with config.open("a") as stream:
        stream.write(
            f"Host {host}\n  HostName n2\n  HostKeyAlias n2\n  ControlMaster auto\n  ControlPath ~/.ssh/{host}\n"
        )
    config.chmod(0o644)
    process = start(user, f"until [ -e {user.home}/go ]; do sleep 0.1; done", "n1", "n3", "n4", host)
    wait_until(lambda: len(notes(user, "began")) == 4, timeout=patience(60))
    other = user.cluster.popen(["ssh", host, "sleep 300"], node="n1")
    try:
        time.sleep(1)
        user.job("", "go")
        output = process.communicate(timeout=patience(15))
        assert (process.returncode, other.poll()) == (0, None), output
    finally:
        user.cluster.kill_tree(other)
        other.communicate()
