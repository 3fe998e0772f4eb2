"""`shell` and `stacks` of a run on hosts that are reached by ssh, and of a job of Slurm whose site allows ssh."""

from __future__ import annotations

import json

import pytest

from tests.slurm.own_program import SLEEPS, job_of, wait_for_ranks
from tests.ssh.ssh_user import SshUser


@pytest.mark.prove
def test_a_shell_and_the_stacks_of_all_hosts(user: SshUser) -> None:
    user.submit(job_of(user, SLEEPS, "srun", nodes=3))
    wait_for_ranks(user, 5)
    code = "echo $RANK; uname -n; pwd; exit 9"
    for rank, host in ((0, "n1"), (4, "n3")):
        done = user.launch("shell", "@last", "--rank", str(rank), "--", "sh", "-c", code)
        assert (done.returncode, done.stdout.splitlines()) == (9, [str(rank), host, str(user.home)]), done.stderr
    found = json.loads(user.launch("stacks", "@last", "--json").stdout)
    (group,) = found["groups"]
    assert (group["ranks"], group["hosts"], found["not_seen"]) == ([0, 1, 2, 3, 4], ["n1", "n2", "n3"], [])
    assert group["frames"][0]["file"].endswith("a program.py")
    assert user.launch("cancel", "@last").returncode == 0
    user.nothing_left()
