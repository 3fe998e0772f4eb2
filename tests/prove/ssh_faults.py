"""The faults of hosts without Slurm that a run has to name before its training, planted on a cluster of its own.

Each row is one run of three hosts. The missing steps of a login are in tests/ssh/test_login_faults.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.cluster.ssh import connect_nodes
from tests.prove.node_check_faults import bind, shows
from tests.prove.node_check_tools import SMI
from tests.prove.rounds import Rounds
from tests.ssh.ssh_user import SshUser

GROUP = "ssh-faults"
PORT = 20123
PEER_PORT = 32768 + PORT * 7919 % 28232
"""The port of the rendezvous, and that between the hosts (agent/check_ssh.py)."""
HOSTS = "hosts: {n1: 4, n2: 4, n3: 4}"


@dataclass(frozen=True)
class Fault:
    """A fault and who has to be named for it.

    `plant` and `undo` are commands of root by host; they know the places HOME (of the run's user) and BIN (first in the
    job's PATH). `node` is "log" where the script itself ends and says why, and "" where nobody is blamed.
    """

    plant: Mapping[str, str]
    undo: Mapping[str, str]
    node: str
    check: str
    says: str
    job: Mapping[str, object] = field(default_factory=dict)
    gpus: int = 0


def drop(node: str, port: int) -> tuple[str, str]:
    """Answer nothing to a node that connects to a port here, as a firewall that drops it."""
    words = f"to 10.77.0.{node[1:]} ipproto tcp sport {port} blackhole"
    return f"ip rule add {words}", f"ip rule del {words}"


def at(node: str, commands: tuple[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """A fault of one host."""
    return {node: commands[0]}, {node: commands[1]}


_FROM_N1, _FROM_N3 = drop("n1", PEER_PORT), drop("n3", PEER_PORT)
_LOOPBACK = "sed 's/^[0-9.]*\\([[:space:]].*n1\\b\\)/127.0.1.1\\1/' /etc/hosts"
_LISTEN = f"setsid python3 -c 'import socket, time; s = socket.create_server((\"\", {PORT})); time.sleep(300)'"

FAULTS: dict[str, Fault] = {
    "a port of the first host is blocked from one host": Fault(
        *at("n1", drop("n3", PORT)),
        node="n3",
        check="rendezvous port",
        says=rf"cannot reach n1 port {PORT} \(10.77.0.1\): timed out",
    ),
    "a port is blocked in one direction between two hosts": Fault(
        *at("n2", drop("n3", PEER_PORT)),
        node="n3",
        check="ports between nodes",
        says=f"cannot connect to n2 port {PEER_PORT}: timed out; n2 can connect to n3",
    ),
    "no host can connect to one": Fault(
        *at("n2", (f"{_FROM_N1[0]}; {_FROM_N3[0]}", f"{_FROM_N1[1]}; {_FROM_N3[1]}")),
        node="n2",
        check="ports between nodes",
        says=f"n1, n3 cannot connect to it at port {PEER_PORT}: timed out",
    ),
    "the port is in use on the first host": Fault(
        *at("n1", (f"{_LISTEN} >/dev/null 2>&1 & echo $! >/dev/shm/listener", "kill $(cat /dev/shm/listener)")),
        node="log",
        check="",
        says=f"found no free port between {PORT} and {PORT} on n1",
    ),
    "other code": Fault(
        *at("n2", bind("$HOME/helper.py", "echo '# new'")),
        node="n2",
        check="code",
        says="the code differs from that of the other nodes: helper.py",
        job={"code": "off"},
    ),
    "a data path is missing": Fault(
        *at("n2", ("mount -t tmpfs none $HOME/data", "umount $HOME/data")),
        node="",
        check="path $HOME/data/part",
        says="n2: .*/data/part: No such file or directory",
    ),
    "the run folder is not shared": Fault(
        *at("n3", ("mount -t tmpfs none $HOME/runs", "umount $HOME/runs")),
        node="n3",
        check="start",
        says="the run folder is not shared with this host",
    ),
    "the name of the first host resolves to loopback": Fault(
        *at("n3", bind("/etc/hosts", _LOOPBACK)),
        node="n3",
        check="rendezvous port",
        says=rf"cannot reach n1 port {PORT} \(127.0.1.1\): ",
    ),
    "another GPU driver": Fault(
        *at("n2", shows("smi", "DRIVER")),
        node="",
        check="gpus",
        says="n2: the GPU driver is 535.104.05 here and 550.90.07 on the other nodes",
        gpus=4,
    ),
}


def play(cluster: Cluster, fault: Fault) -> tuple[list[str], str]:
    """Run a job with a fault: what is wrong, and what was said of the fault."""
    user = SshUser(cluster, cluster.user_folder("fault-"))
    more = f"network: {{ports: [{PORT}, {PORT}]}}\n"
    user.profile(HOSTS, shared=False, preflight="quick", more=more, gpus=fault.gpus)
    places, text = {"HOME": str(user.home), "BIN": str(user.home / "bin")}, job(user, fault)
    try:
        for node, commands in fault.plant.items():
            done = cluster.run(["bash", "-ec", commands], user="root", node=node, env={**places, "NODE": node})
            assert done.returncode == 0, done.stderr
        client = user.launch("submit", text, "--wait", timeout=240)
    finally:
        for node, commands in fault.undo.items():
            cluster.run(["bash", "-c", commands], user="root", node=node, env={**places, "NODE": node})
    attempt = next(user.home.glob("runs/*/attempts/001"))
    log = (attempt / "batch.log").read_text(errors="replace")
    wrong = [] if (attempt / "trained").exists() == (not fault.node) else [f"the training: {client.stdout[-500:]}"]
    if fault.node == "log":
        found = re.search(fault.says, log)
        return wrong if found else [*wrong, f"not in the log: {log[-800:]}"], found[0] if found else ""
    record: dict[str, Any] = json.loads((attempt / "node-check.json").read_text())
    named = {(one["node"], one["check"]): one["text"] for one in record["bad"]}
    named |= {("", one["check"]): one["text"] for one in record["common"]}
    said = str(named.pop((fault.node, fault.check.replace("$HOME", str(user.home))), ""))
    wrong += [] if re.search(fault.says, said) else [f"said: {said!r}, named: {named}, {log[-800:]}"]
    wrong += [f"also named: {named}"] if named else []
    return wrong, said.replace(str(user.home), "…")


def job(user: SshUser, fault: Fault) -> str:
    """The job file, and what it needs on hosts without faults."""
    files = {
        "train.py": "import os\nopen(os.environ['HPC_LAUNCH_ATTEMPT_DIR'] + '/trained', 'w').close()\n",
        "helper.py": "pass\n",
        "data/part": "",
        "saved/.keep": "",
        "runs/.keep": "",
        **({"bin/nvidia-smi": SMI} if fault.gpus else {}),
    }
    for name, text in files.items():
        file = Path(user.job(text, name))
        if name.startswith("bin/"):
            file.chmod(0o755)
    path = f"{user.home}/bin:{user.cluster.environment()['PATH']}"
    wanted: dict[str, Any] = {
        "name": "fault",
        "nodes": 3,
        "launcher": "none",
        "script": str(user.home / "train.py"),
        "environment": {"python": "python3"},
        "args": {"data": str(user.home / "data" / "part")},
        "checkpoint": {"dir": str(user.home / "saved"), "pattern": r"step-(\d+)", "resume": {"args": {"from": "x"}}},
        "retry": {"max_attempts": 1},
    }
    wanted |= fault.job
    wanted["env"] = {"PATH": path, **wanted.get("env", {})}
    if wanted["script"] is None:
        del wanted["script"], wanted["args"]
    return user.job(json.dumps(wanted, indent=1))


def prove(rounds: Rounds) -> int:
    """The rows that are left, one after another; 1 if one went wrong."""
    with Cluster.start(nodes=3, gpus_per_node=0, accounting=False) as cluster:
        connect_nodes(cluster)

        def one(name: str) -> dict[str, Any]:
            wrong, said = play(cluster, FAULTS[name])
            return {"wrong": wrong, "said": said}

        return replace(rounds, workers=1).run_alone(GROUP, rounds.left(GROUP, FAULTS), one)


def section(rows: Mapping[str, Any]) -> str:
    """The part of docs/ssh.md."""
    lines = ["| fault | named | message |", "|---|---|---|"]
    for name, fault in FAULTS.items():
        row = rows.get(name, {"ok": False, "said": "not run"})
        where = {"log": "by the script", "": "without blame"}.get(fault.node, fault.node)
        text = re.sub(r"…[^\s:;]*", "PATH", str(row.get("said", "")))[:120].replace("|", "\\|")
        lines.append(f"| {name} | {where if row['ok'] else '**failed**'} | {text} |")
    return "\n".join(lines)
