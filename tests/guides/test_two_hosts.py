"""Two hosts from nothing, as a cloud's guide to GPT-NeoX sets them up by hand: export, keys, host file, `deepy.py`.

The head is a host of the job, and everything is typed there. Real ssh, pdsh and DeepSpeed's launcher; `deepy.py`
and the training are the stand-ins of the examples. Every host of the tests has the same disk: a folder that is not
shared is one that is hidden on the worker.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.requirements import REPOSITORY
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.ssh import connect_nodes
from tests.guides.hosts import on_first
from tests.ssh.ssh_user import SshUser
from tests.ssh.test_ssh_check import planted

STANDINS = REPOSITORY / "tests" / "examples" / "standins"
HOSTFILE = "localhost slots=2\n10.77.0.2 slots=2\n"
"""The guide's, with 2 slots instead of 4."""
COMMAND = "python3 ./deepy.py train.py configs/2-7B.yml configs/local_setup.yml"
MODEL = {
    "pipe-parallel-size": 1,
    "model-parallel-size": 2,
    "num-layers": 32,
    "train_micro_batch_size_per_gpu": 4,
    "distributed_backend": "gloo",
}
JOB = f"""\
name: gpt-neox
nodes: 2
launcher: none
command: {COMMAND}
env: {{DLTS_HOSTFILE: "${{attempt.dir}}/hostfile"}}
retry: {{max_attempts: 1}}
"""


@pytest.fixture
def head(cluster: Cluster, user_dir: Path) -> SshUser:
    """The user of the guide, on the head: hosts that nobody described yet."""
    try:
        connect_nodes(cluster)
    except ClusterUnavailable as missing:
        pytest.skip(str(missing))
    user = SshUser(cluster, user_dir)
    user.job(HOSTFILE, "hostfile")
    on_first(user, "ssh -oStrictHostKeyChecking=accept-new localhost true && ssh 10.77.0.2 true")
    return user


def launch(user: SshUser, *words: str) -> str:
    return on_first(user, f"hpc-launch {' '.join(words)}")


def learn(user: SshUser) -> dict[str, Any]:
    """The profile that is learned from the host file. Other tests may use the hosts at the same time."""
    path = user.home / "sites" / "hosts.yaml"
    launch(user, "sites learn hosts --hostfile hostfile -o", str(path))
    site: dict[str, Any] = yaml.safe_load(path.read_text())
    site["scheduler"]["shared"] = True
    site["defaults"] = {**site.get("defaults", {}), "environment": {"python": "${launcher.python}"}}
    user.job(yaml.safe_dump(site, sort_keys=False), "sites/hosts.yaml")
    return site


def set_up(user: SshUser) -> None:
    """What the guide's checkout has."""
    for name in ("deepy.py", "train.py"):
        user.job((STANDINS / "gpt_neox" / name).read_text(), name)
    user.job((STANDINS / "meet.py").read_text(), "megatron/meet.py")
    user.job(yaml.safe_dump(MODEL), "configs/2-7B.yml")
    user.job(yaml.safe_dump({"data_path": "data/enron"}), "configs/local_setup.yml")


def met(output: str) -> list[dict[str, Any]]:
    """What each process said after all had met."""
    found = [json.loads(text) for text in re.findall(r"STANDIN (\{.*\})", output)]
    assert found, output
    return sorted(found, key=lambda one: int(one["rank"]))


@pytest.mark.prove
@pytest.mark.torch("deepspeed")
def test_deepy_trains_unchanged_on_both_hosts_that_were_learned_from_the_host_file(head: SshUser) -> None:
    site = learn(head)
    assert site["scheduler"]["hosts"] == {
        "localhost": {"slots": 2, "address": "10.77.0.1", "interface": "eth0"},
        "10.77.0.2": {"slots": 2, "address": "10.77.0.2", "interface": "eth0"},
    }
    assert site["scheduler"].get("shared_folders", True) is True
    set_up(head)
    by_hand = {"DLTS_HOSTFILE": str(head.home / "hostfile"), "PDSH_RCMD_TYPE": "ssh"}
    wanted = met(on_first(head, f"export DSHPATH=$PATH; {COMMAND}", **by_hand))
    launch(head, "submit", head.job(JOB), "--wait")
    found = met(launch(head, "logs @last"))
    assert [one["host"] for one in found] == ["n1", "n1", "n2", "n2"]
    assert found == wanted
    (hostfile,) = head.home.glob("runs/*/attempts/001/hostfile")
    assert hostfile.read_text() == HOSTFILE
    head.nothing_left()


def test_one_machine_under_two_names_is_refused_when_it_is_learned_and_before_it_is_used(head: SshUser) -> None:
    head.job("n1 slots=2\n10.77.0.1 slots=2\n", "twice")
    done = head.launch("sites", "learn", "twice", "--hostfile", str(head.home / "twice"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "HL660 10.77.0.1 and n1 are two names of one machine" in done.stderr
    head.profile("hostfile: twice")
    done = head.launch("submit", head.job("name: twice\nnodes: 2\nlauncher: srun\ncommand: 'true'\n"))
    assert done.returncode == 4, done.stdout + done.stderr
    assert "HL660 10.77.0.1 and n1 are two names of one machine" in done.stderr


def test_a_folder_that_the_worker_does_not_mount_is_named_when_it_is_learned_and_when_it_is_used(head: SshUser) -> None:
    runs = Path(head.job("", "runs/.keep")).parent
    profile = str(head.home / "sites" / "hosts.yaml")
    with planted(head, ("n2", f"mount -t tmpfs none {runs}", f"umount {runs}")):
        learned = json.loads(launch(head, "sites learn hosts --hostfile hostfile --json -o", profile))
        assert (learned["folders"][str(runs)], learned["folders"][str(head.home)]) == (
            ["localhost"],
            ["localhost", "10.77.0.2"],
        )
        made = yaml.safe_load(Path(profile).read_text())
        assert made["defaults"]["run_dir"].startswith(f"{head.home}/"), "a folder that both have"
        head.profile("hosts: {n1: 1, n2: 1}")
        done = head.launch("submit", head.job("name: used\nnodes: 2\nlauncher: srun\ncommand: 'true'\n"), "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    why = head.launch("why", "@last").stdout
    assert re.search(r"first +on n2", why), why
    (log,) = head.home.glob("runs/*/attempts/001/batch.log")
    assert f"the run folder is not shared with this host: {runs}" in log.read_text(), log.read_text()
    head.nothing_left()


@pytest.mark.prove
@pytest.mark.torch("deepspeed")
def test_deepy_trains_on_the_head_alone_first(head: SshUser) -> None:
    learn(head)
    set_up(head)
    launch(head, "submit", head.job(JOB), "--set nodes=1 --wait")
    found = met(launch(head, "logs @last"))
    assert [(one["host"], one["options"]["global_num_gpus"]) for one in found] == [("n1", 2)] * 2
