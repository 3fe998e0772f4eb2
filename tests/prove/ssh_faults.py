"""The faults of hosts without Slurm that a run has to name before its training, planted on a cluster of its own.

Each row is one run of three hosts. The missing steps of a login are in tests/ssh/test_login_faults.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.cluster import Cluster
from tests.cluster.ssh import connect_nodes
from tests.prove.node_check import named, usual_job
from tests.prove.node_check_tools import SMI
from tests.prove.node_fault import COMMON, Fault, bind, filled, shows
from tests.prove.rounds import Rounds
from tests.ssh.ssh_user import SshUser

GROUP = "ssh-faults"
PORT = 20123
PEER_PORT = 32768 + PORT * 7919 % 28232
"""The port of the rendezvous, and that between the hosts (agent/check_ssh.py)."""
TRAINS = "import os\nopen(os.environ['HPC_LAUNCH_ATTEMPT_DIR'] + '/trained', 'w').close()\n"
LOG = "log"
"""In place of a node: the script itself ends and says why."""


def drop(port: int, *nodes: str) -> tuple[str, str]:
    """Answer nothing to nodes that connect to a port here, as a firewall that drops it."""
    rules = [f"to 10.77.0.{node[1:]} ipproto tcp sport {port} blackhole" for node in nodes]
    return "; ".join(f"ip rule add {one}" for one in rules), "; ".join(f"ip rule del {one}" for one in rules)


_LOOPBACK = "sed 's/^[0-9.]*\\([[:space:]].*n1\\b\\)/127.0.1.1\\1/' /etc/hosts"
_LISTEN = f"setsid python3 -c 'import socket, time; s = socket.create_server((\"\", {PORT})); time.sleep(300)'"

FAULTS = (
    Fault(
        "a port of the first host is blocked from one host",
        "n3",
        "rendezvous port",
        f"cannot reach n1 port {PORT} (10.77.0.1): timed out",
        *drop(PORT, "n3"),
        at="n1",
    ),
    Fault(
        "a port is blocked in one direction between two hosts",
        "n3",
        "ports between nodes",
        f"cannot connect to n2 port {PEER_PORT}: timed out; n2 can connect to n3",
        *drop(PEER_PORT, "n3"),
        at="n2",
    ),
    Fault(
        "no host can connect to one",
        "n2",
        "ports between nodes",
        f"n1, n3 cannot connect to it at port {PEER_PORT}: timed out",
        *drop(PEER_PORT, "n1", "n3"),
    ),
    Fault(
        "the port is in use on the first host",
        LOG,
        "",
        f"found no free port between {PORT} and {PORT} on n1",
        f"{_LISTEN} >/dev/null 2>&1 & echo $! >/dev/shm/listener",
        "kill $(cat /dev/shm/listener)",
        at="n1",
    ),
    Fault(
        "other code",
        "n2",
        "code",
        "the code differs from that of the other nodes: helper.py",
        *bind("$HOME/helper.py", "echo '# new'"),
    ),
    Fault(
        "a data path is missing",
        COMMON,
        "path $HOME/data/part",
        "n2: $HOME/data/part: No such file or directory",
        "mount -t tmpfs none $HOME/data",
        "umount $HOME/data",
        at="n2",
    ),
    Fault(
        "the run folder is not shared",
        "n3",
        "start",
        "the run folder is not shared with this host",
        "mount -t tmpfs none $HOME/runs",
        "umount $HOME/runs",
    ),
    Fault(
        "the name of the first host resolves to loopback",
        "n3",
        "rendezvous port",
        f"cannot reach n1 port {PORT} (127.0.1.1): ",
        *bind("/etc/hosts", _LOOPBACK),
    ),
    Fault(
        "another GPU driver",
        COMMON,
        "gpus",
        "n2: the GPU driver is 535.104.05 here and 550.90.07 on the other nodes",
        *shows("smi", "DRIVER"),
        at="n2",
    ),
)


def play(cluster: Cluster, fault: Fault) -> tuple[list[str], str]:
    """Run a job with a fault: what is wrong, and what was said of the fault."""
    user = SshUser(cluster, cluster.user_folder("fault-"))
    more, gpus = f"network: {{ports: [{PORT}, {PORT}]}}\n", 4 if fault.check == "gpus" else 0
    user.profile("hosts: {n1: 4, n2: 4, n3: 4}", shared=False, preflight="quick", more=more, gpus=gpus)
    places = {"HOME": str(user.home), "BIN": str(user.home / "bin")}
    files = {"train.py": TRAINS, "helper.py": "pass\n", **({"bin/nvidia-smi": SMI} if gpus else {})}
    wanted = usual_job(user, files, name="fault", nodes=3, launcher="none", environment={"python": "python3"})
    wanted["args"] = {"data": str(user.home / "data" / "part")}
    if fault.check == "code":
        wanted["code"] = "off"
    file = user.job(json.dumps(wanted))
    try:
        fault.planted(cluster, places)
        client = user.launch("submit", file, "--wait", timeout=240)
    finally:
        fault.undone(cluster, places)
    attempt = next(user.home.glob("runs/*/attempts/001"))
    log = (attempt / "batch.log").read_text(errors="replace")
    trains = fault.node == COMMON
    wrong = [] if (attempt / "trained").exists() == trains else [f"the training: {client.stdout[-500:]}"]
    says = filled(fault.says, places)
    if fault.node == LOG:
        return (wrong, says) if says in log else ([*wrong, f"not in the log: {log[-800:]}"], "")
    found = {key: str(one["text"]) for key, one in named(json.loads((attempt / "node-check.json").read_text())).items()}
    key = next((key for key in found if fault.is_named(key, places)), None)
    said = found.pop(key) if key else ""
    wrong += [] if says in said else [f"said: {said!r}, named: {found}, {log[-800:]}"]
    wrong += [f"also named: {found}"] if found else []
    return wrong, said.replace(str(user.home), "…")


def prove(rounds: Rounds) -> int:
    """The rows that are left, one after another; 1 if one went wrong."""
    faults = {fault.fault: fault for fault in FAULTS}
    with Cluster.start(nodes=3, gpus_per_node=0, accounting=False) as cluster:
        connect_nodes(cluster)

        def one(name: str) -> dict[str, Any]:
            wrong, said = play(cluster, faults[name])
            return {"wrong": wrong, "said": said}

        return replace(rounds, workers=1).run(GROUP, rounds.left(GROUP, faults), one)


def section(rows: Mapping[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""
    lines = ["| fault | named | message |", "|---|---|---|"]
    for fault in FAULTS:
        row = rows.get(fault.fault, {"ok": False, "said": "not run"})
        where = {LOG: "by the script", COMMON: "without blame"}.get(fault.node, fault.node)
        text = re.sub(r"…[^\s:;]*", "PATH", str(row.get("said", "")))[:120].replace("|", "\\|")
        lines.append(f"| {fault.fault} | {where if row['ok'] else '**failed**'} | {text} |")
    return "\n".join(lines)
