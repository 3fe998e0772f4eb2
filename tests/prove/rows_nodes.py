"""Faults of nodes, of the network between them, and of what Slurm runs on them. Each row has a cluster of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.cluster.faults import PATIENCE_S
from tests.prove.row import ONE_NODE, PAIR, Row, command, ordered, unharmed
from tests.prove.scene import Scene

THREE = {"nodes": 3}
LONG = {"pause": 3}
"""A step takes so long that the training outlives what is done to the cluster beside it."""


def kill_node(scene: Scene) -> None:
    scene.cluster.kill_node(str(scene.struck))


def kill_slurmd(scene: Scene) -> None:
    scene.cluster.kill_slurmd(str(scene.struck))


def cut_for_good(scene: Scene) -> None:
    scene.cluster.cut(str(scene.struck))


def cut_for_20_s(scene: Scene) -> None:
    node = scene.node(1)
    scene.cluster.cut(node)
    time.sleep(20)
    scene.cluster.mend(node)


def reboot(scene: Scene) -> None:
    kill_node(scene)
    time.sleep(10)
    scene.cluster.revive_node(str(scene.struck))


def venv_on_all_but_one(scene: Scene) -> None:
    """A virtual environment on the disk of each node, except on the second one."""
    venv = f"/tmp/venv-{scene.user.home.name}"
    make = ["python3", "-m", "venv", "--without-pip", "--system-site-packages", venv]
    for node in (*scene.cluster.nodes, None):
        scene.cluster.run(make, node=node, check=True)
    scene.cluster.node_exec("n2", ["rm", "-r", venv])
    scene.row.job["environment"] = {"venv": venv, "python": "python3"}
    scene.happens()


def prolog_fails(scene: Scene) -> None:
    scene.cluster.fail_prolog("n2")
    scene.happens()


def keeps_off(scene: Scene) -> list[str]:
    """The second attempt must not have been on the bad node."""
    attempts = scene.status()["attempts"]
    return [f"attempt {one['number']} was on it" for one in attempts[1:] if scene.struck in one["nodes"]]


SMI = """\
#!/bin/sh
# Stands in for nvidia-smi: one GPU, whose memory errors the training counts in a file of the node.
count=0
[ ! -e /tmp/gpu-is-broken ] || count=1
case "$*" in
*index,ecc*) echo "0, $count" ;;
*query-gpu*) echo "0, 97, 70123, 61, 688.13, 1980, 0x0000000000000000, 0"; exec sleep 600 ;;
esac
"""


def with_gpus(scene: Scene) -> None:
    """Every node has an nvidia-smi."""
    tool = Path(scene.user.job(SMI, "bin/nvidia-smi"))
    tool.chmod(0o755)
    path = scene.user.job(f"export PATH={tool.parent}:$PATH\n", "path.sh")
    scene.row.job["environment"] = {"source": [path]}


def bad_for_two(scene: Scene) -> None:
    """A second run starts on the same bad node before the first one fails."""
    record = scene.user.home / "record-of-the-twin"
    twin = scene.job(name="twin", args={"record": str(record)})
    scene.left["twin"] = scene.user.popen("submit", scene.user.job(json.dumps(twin), "twin.yaml"), "--wait", "--json")


def two_runs_of_a_bad_node(scene: Scene) -> list[str]:
    """Both blamed the node, both went on elsewhere, and a third run keeps off it from the start."""
    wrong = keeps_off(scene)
    out, err = scene.left["twin"].communicate(timeout=PATIENCE_S)
    status = scene.user.status(json.loads(out)["run"])
    nodes = [one["nodes"] for one in status["attempts"]]
    if status["state"] != "COMPLETED" or nodes[:1] != [["n1"]] or len(nodes) != 2 or "n1" in nodes[1]:
        wrong.append(f"the second run: {status['state']} on {nodes}: {err[-300:]}")
    counts = {one["node"]: one["count"] for one in json.loads(scene.user.launch("nodes", "list", "--json").stdout)}
    if counts != {"n1": 2}:
        wrong.append(f"the ledger has {counts}")
    third = scene.job(name="third", args={"record": str(scene.user.home / "record-of-the-third")})
    done = scene.user.launch("submit", scene.user.job(json.dumps(third)), "--wait", "--json")
    attempts = scene.user.status(json.loads(done.stdout)["run"])["attempts"]
    if done.returncode != 0 or len(attempts) != 1 or "n1" in attempts[0]["nodes"]:
        wrong.append(f"the third run did not keep off n1: {attempts}")
    return wrong


def lost(key: str, fault: str, **more: Any) -> Row:
    """A row in which a node of three is lost, and the next attempt keeps off it."""
    usual: dict[str, Any] = {"classes": ("node_failure",), "node": 1, "cluster": THREE, "after": keeps_off}
    return Row(key, fault, verdicts=("RETRY_ELSEWHERE",), **{**usual, **more})


ROWS = (
    lost("node-first", "the first of two nodes loses power", act=kill_node, node=0),
    lost("node-other", "the second of two nodes loses power", act=kill_node),
    lost(
        "node-batch",
        "the only node, which runs the batch script, loses power",
        act=kill_node,
        node=0,
        job=ONE_NODE,
        cluster=PAIR,
    ),
    # The processes live on, and a busy Slurm notices late.
    lost("slurmd", "slurmd of a node is killed and stays dead", act=kill_slurmd, args={"pause": 6}),
    lost("reboot", "the second of two nodes loses power and is back after 10 s", act=reboot, args=LONG),
    lost(
        "set-down",
        "an administrator sets a node of the running job DOWN",
        act=command("scontrol", "update", "nodename=NODE1", "state=down", "reason=a broken fan"),
        args=LONG,
    ),
    lost("prolog", "Slurm's Prolog fails on a node", before=prolog_fails, node="n2"),
    lost(
        "no-venv",
        "the virtual environment is missing on the second of two nodes",
        classes=("filesystem_error",),
        before=venv_on_all_but_one,
        node="n2",
        note="the interpreter is checked on every node; without that, srun would use the system's python3 there",
    ),
    unharmed(
        "cable-20s",
        "the network cable of a node is unplugged for 20 s",
        act=cut_for_20_s,
        cluster=PAIR,
        args=LONG,
        note="no failure: the job continues",
    ),
    lost("cable", "the network cable of a node is cut permanently", act=cut_for_good),
    unharmed(
        "drained",
        "an administrator drains a node of the running job",
        act=ordered("drain"),
        cluster=PAIR,
        note="no failure: Slurm lets the job finish",
    ),
    lost(
        "bad-node",
        "a GPU of a node fails in two consecutive runs",
        classes=("gpu_hardware",),
        node="n1",
        job=ONE_NODE,
        args={"fault": "ecc", "fault-node": "n1", "pause": 0.7},
        before=with_gpus,
        act=bad_for_two,
        at=0,
        after=two_runs_of_a_bad_node,
        note="both continue on other nodes; a third run excludes the node from the start, as a known bad node; "
        "the watcher's nvidia-smi, which is a stand-in, proves the fault",
    ),
)
