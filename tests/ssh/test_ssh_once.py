"""A program that starts its processes itself (`launcher: none`): its hosts are leased, and it ends when one is lost."""

from __future__ import annotations

import json

from tests.cluster.faults import wait_until
from tests.ssh.ssh_user import SshUser

JOB = "name: own\nlauncher: none\nnodes: 2\nretry: {max_attempts: 1}\n"


def test_the_hosts_of_a_program_are_leased_and_it_ends_when_one_is_lost(user: SshUser) -> None:
    user.profile("hosts: {n1: 2, n2: 1}", shared=False)
    job = user.job(
        f"{JOB}command: [bash, -c, 'sleep 301 & echo $(wc -l <$HPC_LAUNCH_ATTEMPT_DIR/hostfile) hosts; wait']\n"
    )
    run = json.loads(user.launch("submit", job, "--json").stdout)["run"]
    wait_until(
        lambda: "2 hosts" in user.launch("logs", run).stdout, explain=lambda: user.launch("logs", run).stdout, every=0.5
    )
    again = user.launch("submit", job)
    assert again.returncode == 4, again.stdout + again.stderr
    assert f"n2 is in use by {user.cluster.user}: run {run}" in again.stderr
    user.kill("n2", "sshd")
    only = user.until(run, "FAILED", "STOPPED")["attempts"][0]
    assert (only["class"], only["exit_code"]) == ("node_failure", 255), only
    user.nothing_left()
    done = user.launch("submit", user.job(f"{JOB}command: echo well\n"), "--wait")
    assert done.returncode == 0, done.stdout + done.stderr + user.launch("logs", "@last").stdout
    user.nothing_left()
