"""Hosts that print megabytes or escape sequences at login, or have another login shell than bash."""

from __future__ import annotations

import time

import pytest
import yaml

from tests.busy import patience
from tests.marks import prove
from tests.ssh.hostile import hostile_hosts
from tests.ssh.ssh_user import SshUser


def job(user: SshUser, hosts: list[str], program: str) -> str:
    user.profile(f"hosts: {yaml.safe_dump(dict.fromkeys(hosts, 1), default_flow_style=True, sort_keys=False)}")
    wanted = {"name": "hostile", "nodes": len(hosts), "launcher": "srun", "command": ["bash", "-c", program]}
    return user.job(yaml.safe_dump({**wanted, "hang": False, "retry": {"max_attempts": 1}}))


@pytest.mark.parametrize("names", [("flood", "dash"), prove(("echo", "csh", "fish", "flood"))])
def test_hosts_that_print_or_have_another_shell_run_jobs(user: SshUser, names: tuple[str, ...]) -> None:
    with hostile_hosts(user, *names) as hosts:
        done = user.launch("submit", job(user, hosts, 'echo "$RANK of $WORLD_SIZE in $PWD"'), "--wait")
    log = user.launch("logs", "@last").stdout
    (batch,) = user.home.glob("runs/*/attempts/001/batch.log")
    assert done.returncode == 0, done.stdout + done.stderr + batch.read_text()
    for rank in range(len(hosts)):
        assert f"{rank} of {len(hosts)} in {user.home}" in log
    for text in (done.stdout, done.stderr, batch.read_text(), log):
        assert "\033" not in text
        assert "elcome" not in text
        assert len(text) < 100_000


def test_a_start_up_file_that_ends_the_shell_is_named(user: SshUser) -> None:
    with hostile_hosts(user, "exit", "exec") as hosts:
        begin = time.monotonic()
        done = user.launch("submit", job(user, ["n1", *hosts], "true"))
        assert time.monotonic() - begin < patience(60)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "\033" not in done.stderr
    assert all(f"{host} cannot run a command over ssh" in done.stderr for host in hosts), done.stderr
    assert "no service today" in done.stderr
    assert "start-up file" in done.stderr
