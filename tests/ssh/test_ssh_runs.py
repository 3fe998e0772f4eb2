"""Runs on three hosts without a scheduler, over real ssh: from submit to the end, and what is left of them."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.cluster.ssh import connect_nodes
from tests.marks import prove
from tests.slurm.own_program import SLEEPS, job_of, wait_for_ranks
from tests.slurm.user import SMALL
from tests.ssh.ssh_user import SshUser

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt"


job = partial(job_of, nodes=3)


@pytest.mark.torch
@pytest.mark.prove  # tests/guides/test_pdsh_hosts.py starts one on uneven hosts, too
def test_torchrun_trains_over_three_uneven_hosts(user: SshUser) -> None:
    sets = ["--set=nodes=3", "--set=processes_per_node=null", "--set=args.steps=4", "--set=retry.max_attempts=1"]
    log = user.completed(str(EXAMPLE / "job.yaml"), *sets, *SMALL)
    status = user.status()
    assert (status["state"], status["job_id"][:4]) == ("COMPLETED", "ssh-")
    assert status["attempts"][0]["nodes"] == ["n1", "n2", "n3"]
    assert set(re.findall(r"rank (\d) of 5 on host (n\d)", log)) == {
        ("0", "n1"),
        ("1", "n1"),
        ("2", "n2"),
        ("3", "n2"),
        ("4", "n3"),
    }
    user.nothing_left()


def test_cancel_leaves_no_process(user: SshUser) -> None:
    assert user.launch("submit", job(user, SLEEPS, "srun")).returncode == 0
    wait_for_ranks(user, 5)
    assert user.status()["state"] in {"STARTING", "RUNNING"}
    assert user.launch("cancel", "@last").returncode == 0
    user.until("@last", "CANCELLED")
    user.nothing_left()


@pytest.mark.parametrize(("victim", "node"), [("agent.pyz fan_out", "n1"), prove("agent.pyz on_host", "n2")])
def test_nothing_is_left_after_a_kill(user: SshUser, victim: str, node: str) -> None:
    assert user.launch("submit", job(user, SLEEPS, "srun")).returncode == 0
    wait_for_ranks(user, 5)
    user.kill(node, victim)
    user.nothing_left()
    status = user.until("@last", "FAILED", "STOPPED", "COMPLETED")
    assert status["state"] != "COMPLETED"


@pytest.mark.parametrize("by_ssh", [False, True])
def test_only_a_submission_on_the_first_host_itself_needs_no_login_there(user: SshUser, by_ssh: bool) -> None:
    """A container has the host's address, too, and a login leads out of it."""
    user.profile("hosts: {n1: 1}")
    words = ["hpc-launch", "submit", job(user, SLEEPS, "srun", nodes=1)]
    around = ["unshare", *["--mount"][:by_ssh], "setpriv", f"--reuid={user.cluster.uid}", f"--regid={user.cluster.uid}"]
    env = {**user.cluster.environment(), **user.env}
    done = user.cluster.run([*around, "--clear-groups", *words], node="n1", user="root", cwd=user.home, env=env)
    assert done.returncode == 0, done.stderr
    [state] = user.home.glob("runs/*/attempts/001/local.json")
    supervisor = json.loads(state.read_text())["pid"]
    environment = user.cluster.node_exec("n1", ["cat", f"/proc/{supervisor}/environ"]).stdout
    assert ("SSH_CONNECTION=" in environment) == by_ssh, environment
    wait_for_ranks(user, 1)
    assert user.launch("cancel", "@last").returncode == 0
    user.nothing_left()


def test_a_host_that_the_first_one_cannot_reach_is_refused_by_name(user: SshUser) -> None:
    user.profile("hosts: {n1: 1, missing-host: 1, lost-host: 1}")
    done = user.launch("submit", job(user, SLEEPS, "torchrun"))
    assert done.returncode == 4, done.stdout + done.stderr
    said = r"HL663 cannot reach missing-host over ssh from n1: .*resolve.*HL663 cannot reach lost-host"
    assert re.search(said, done.stderr), done.stderr
    user.nothing_left()


@pytest.mark.usefixtures("leases")
def test_a_host_that_another_run_uses_is_refused_with_its_holder(user: SshUser) -> None:
    user.profile("hosts: {n4: 1, n3: 1}", shared=False)
    assert user.launch("submit", job(user, SLEEPS, "srun", nodes=1)).returncode == 0
    wait_for_ranks(user, 1)
    holder = user.status()["run"]
    done = user.launch("submit", job(user, SLEEPS, "srun", nodes=2))
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"n4 is in use by {user.cluster.user}: run {holder}" in done.stderr
    user.profile("hosts: {n4: 1, missing-host: 2}", shared=False)
    listed = json.loads(user.launch("nodes", "leases", "--json").stdout)
    assert [(one["host"], one["slots"], one["state"]) for one in listed] == [
        ("n4", 1, "used"),
        ("missing-host", 2, "unknown"),
    ]
    assert [(one["user"], one["run"]) for one in listed[0]["holders"]] == [(user.cluster.user, holder)]
    assert "cannot reach missing-host" in listed[1]["fault"]
    assert re.search(r"hosts +n4: leased by this run", user.launch("status", holder).stdout)
    assert re.search(rf"{holder} .* n4\b", user.launch("list").stdout)
    user.profile("hosts: {n4: 1}", shared=True)
    assert user.launch("submit", job(user, "pass\n", "srun", nodes=1), "--wait").returncode == 0
    assert user.launch("cancel", holder).returncode == 0
    user.until(holder, "CANCELLED")
    user.nothing_left()
    user.profile("hosts: {n4: 1}", shared=False)
    assert user.launch("submit", job(user, "pass\n", "srun", nodes=1), "--wait").returncode == 0


def test_a_profile_is_learned_from_the_hosts_and_used(user: SshUser) -> None:
    user.job("n1 slots=2\nn2\nmissing-host slots=8\n", "hostfile")
    words = ["sites", "learn", "learned", "--hostfile", str(user.home / "hostfile"), "--json"]
    done = user.launch(*words, "-o", str(user.home / "sites" / "learned.yaml"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["hosts"]) == {"n1", "n2"}
    assert "cannot reach missing-host over ssh" in found["unreachable"]["missing-host"]
    addresses = [user.cluster.settings.address(node) for node in ("n1", "n2")]
    site = yaml.safe_load((user.home / "sites" / "learned.yaml").read_text())
    assert [host["address"] for host in site["scheduler"]["hosts"].values()] == addresses
    assert not [path for path in user.cluster.home.iterdir() if path.name.startswith(".hpc-launch-probe")]
    assert str(user.cluster.home) in found["folders"]
    # Other tests may use the hosts at the same time.
    site["scheduler"]["shared"] = True
    user.job(yaml.safe_dump(site, sort_keys=False), "sites/learned.yaml")
    user.completed(job(user, "print('done')\n", "none", nodes=2), "--site", "learned")
    assert user.status()["attempts"][0]["nodes"] == ["n1", "n2"]


# A program that starts its processes itself.
OWN = "name: own\nlauncher: none\nnodes: 2\nretry: {max_attempts: 1}\n"


@pytest.mark.usefixtures("leases")
def test_the_hosts_of_a_program_are_leased_and_it_ends_when_one_is_lost(user: SshUser) -> None:
    user.profile("hosts: {n1: 2, n2: 1}", shared=False)
    job = user.job(
        f"{OWN}command: [bash, -c, 'sleep 301 & echo $(wc -l <$HPC_LAUNCH_ATTEMPT_DIR/hostfile) hosts; wait']\n"
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
    user.completed(user.job(f"{OWN}command: echo well\n"))
    user.nothing_left()


@pytest.mark.prove
@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_the_example_trains_in_an_image(cluster_sid: Cluster, user_dir: Path, sif: Path, launcher: str) -> None:
    connect_nodes(cluster_sid)
    user = SshUser(cluster_sid, user_dir)
    user.profile("hosts: {n1: 2, n2: 1}")
    sets = {
        "container.image": str(sif),
        "container.runtime": "apptainer",
        "container.binds": json.dumps(user.cluster.python_folders),
    }
    sets |= {"launcher": launcher, "nodes": "2", "processes_per_node": "null", "args.steps": "4"}
    sets |= {"retry.max_attempts": "1"}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    log = user.completed(str(EXAMPLE / "job.yaml"), *words, *SMALL)
    assert set(re.findall(r"rank (\d) of 3 on host (n\d)", log)) == {("0", "n1"), ("1", "n1"), ("2", "n2")}
    (script,) = user.home.glob("runs/*/attempts/001/script.sh")
    assert "apptainer exec" in script.read_text()
    user.nothing_left()
