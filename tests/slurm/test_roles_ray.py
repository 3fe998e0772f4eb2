"""Ray clusters as roles: on all nodes of a job with what the job has there, and never in the way of another one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.slurm.test_roles import states, wait_for, why
from tests.slurm.user import User

pytestmark = pytest.mark.torch("ray")

PROGRAM = """\
import os, sys, time, ray
ray.init(log_to_driver=False)
print("nodes", sum(node["Alive"] for node in ray.nodes()), "CPUs", int(ray.cluster_resources()["CPU"]), flush=True)
socket = ray._private.worker._global_node.plasma_store_socket_name
print("socket of", len(socket), "bytes", flush=True)
@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    time.sleep(1)
    return os.uname().nodename
print("on", *sorted(set(ray.get([where.remote() for _ in range(6)]))), flush=True)
while os.path.exists(sys.argv[1]):
    time.sleep(0.5)
print("done", flush=True)
"""


def job(user: User, waits_for: str = "/nowhere", **keys: Any) -> str:
    """A program on a Ray cluster that waits until a file is gone."""
    user.cluster.write(user.home / "program.py", PROGRAM)
    role = {
        "nodes": "rest",
        "launcher": "ray",
        "script": "program.py",
        "args": [waits_for],
        "ends": "job",
        "grace": "5s",
    }
    wanted = {"name": "ray", "nodes": 2, "cpus_per_node": 1, "preflight": "off", "retry": {"max_attempts": 1}}
    return user.job(yaml.safe_dump({**wanted, "roles": {"train": role}, **keys}))


def test_the_program_has_all_nodes_with_the_cpus_of_the_job(user: User) -> None:
    log = user.completed(job(user, env={"TMPDIR": "/tmp/" + "long" * 30}))
    assert "nodes 2 CPUs 2" in log
    assert len(re.findall(r"on (n\d) (n\d)", log)) == 1
    (length,) = map(int, re.findall(r"socket of (\d+) bytes", log))
    assert length < 107
    user.nothing_left()


@pytest.mark.prove
def test_one_of_two_clusters_on_a_node_ends_and_the_other_stays(user: User) -> None:
    wait = user.home / "wait"
    user.cluster.write(wait, "")
    stays = user.submit(job(user, str(wait), nodes=1))["run"]
    ends = user.submit(job(user, nodes=1))["run"]
    assert user.until(ends, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    wait_for(user, "train", "ended")
    assert user.until(stays, "RUNNING")["state"] == "RUNNING"
    user.cluster.run(["rm", str(wait)], check=True)
    assert user.until(stays, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    user.nothing_left()


@pytest.mark.prove
def test_a_head_that_is_killed_ends_the_job(user: User) -> None:
    wait = user.home / "wait"
    user.cluster.write(wait, "")
    user.submit(job(user, str(wait)))
    node = wait_for(user, "train", "ready")["nodes"][0]
    user.cluster.node_exec(node, ["pkill", "-KILL", "-f", "gcs_server"])
    status = user.until("@last", "FAILED", "STOPPED", "COMPLETED")
    assert status["state"] != "COMPLETED"
    assert why(user)["first_failure"]["role"] == "train"
    assert states(user)["train"]["exit_code"] != 0
    assert json.dumps(status)
    user.nothing_left()
