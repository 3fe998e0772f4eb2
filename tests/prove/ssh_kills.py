"""Runs over ssh of which something is killed: no process is left on any host, and the run says what happened.

A round is one run on three hosts, one process for each slot, of which one part dies at a random moment: by SIGKILL,
or as a host without power or network.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.ssh import connect_nodes
from tests.cluster.syscalls import descendants
from tests.prove.rounds import Rounds, processes
from tests.ssh.ssh_user import SshUser

GROUP = "ssh-kills"
LEFT_S = 15.0
"""In this time every process of a run that is over is gone."""
HOSTS = {"n1": 2, "n2": 2, "n3": 1}
TRAINS = """\
note() {{ echo "$RANK $1 $(uname -n)" >>{marker}; }}
note start
until [ -e {go} ]; do sleep 0.2; done
note end
"""
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, str]]] = {
    "client that waits": ((), ("CANCELLED", "cancelled by the end of the client on login")),
    "client that follows": ((), ("COMPLETED", "")),
    "sshd": (("n1", "n2", "n3"), ("FAILED", "{node}: the connection ended with code 255")),
    "host": (("n2", "n3"), ("FAILED", "{node}: the connection ended with code 255")),
    "first host": (("n1",), ("UNKNOWN", "cannot reach n1 over ssh|n1 did not answer")),
    "network": (("n2", "n3"), ("FAILED", "{node}: the connection ended with code 255")),
    "rank": (("n1", "n2", "n3"), ("FAILED", "was the first to fail, with exit code 137")),
    "supervisor": (("n1",), ("FAILED", "supervisor .* was killed")),
}
"""What is killed: on which of these hosts, the state of the run then, and what the status or the batch log says."""
QUICK = ("client that follows", "sshd", "rank", "supervisor")
"""Some that leave the hosts to other tests."""


def play(user: SshUser, number: int, kind: str, node: str) -> tuple[list[str], float | None]:
    """One round: what is wrong, and the seconds until nothing was left of the run."""
    chance, (state, words) = random.Random(number), KINDS[kind][1]
    marker, go = user.home / "trained", user.home / "go"
    wanted: dict[str, Any] = {
        "name": f"kill{number}", "launcher": "srun", "nodes": 3, "hang": {"after": "5m"}, "time": "00:20:00",
        "command": ["bash", "-c", TRAINS.format(marker=marker, go=go)], "retry": {"max_attempts": 1},
    }  # fmt: skip
    file = user.job(json.dumps(wanted))
    if kind == "client that waits" or (kind != "client that follows" and chance.random() < 0.5):
        client = user.popen("submit", file, "--wait")
    else:
        assert user.launch("submit", file).returncode == 0
        client = user.popen("watch", "@last")
    try:
        ranks = sum(HOSTS.values())
        wait_until(lambda: len(user.trainings(marker)) == ranks, patience(120), lambda: user.launch("logs").stdout)
        if kind == "client that waits":
            wait_until(lambda: bool(user.processes("n1", "attached_run")), patience(60))
        time.sleep(chance.uniform(0, 3))
        _kill(user, client, kind, node)
        if state == "COMPLETED":
            time.sleep(chance.uniform(0, 3))
            user.cluster.run(["touch", str(go)], check=True)
        begin, left = time.monotonic(), [""]
        while left and time.monotonic() - begin < patience(LEFT_S):
            left = _left(user, client)
            time.sleep(0.2)
        seconds = None if left else time.monotonic() - begin
        status = user.until("@last", state, seconds=patience(60))
    finally:
        user.cluster.kill_tree(client)
        client.communicate()
    return [*(f"left: {one}" for one in left), *_wrong(user, status, words.format(node=node), marker)], seconds


def _kill(user: SshUser, client: subprocess.Popen[str], kind: str, node: str) -> None:
    if kind.startswith("client"):
        client.kill()
    elif kind == "network":
        user.cluster.cut(node)
    elif "host" in kind:
        user.cluster.kill_node(node)
    else:
        user.kill(node, {"sshd": "sshd", "rank": "until [ -e", "supervisor": "local.supervisor"}[kind])


def _left(user: SshUser, client: subprocess.Popen[str]) -> list[str]:
    """The processes of the run on all hosts, and of the client if it is dead."""
    living = {client.pid, *descendants(client.pid)}
    return [
        one.command[:300]
        for one in processes(f"{user.home}/")
        if one.command and one.number not in living and not ("attached_run" in one.command and client.poll() is None)
    ]


def _wrong(user: SshUser, status: dict[str, Any], words: str, marker: Path) -> list[str]:
    (log,) = user.home.glob("runs/*/attempts/001/batch.log")
    told = f"{status['reason']}\n{log.read_text(errors='replace')}"
    wrong = [] if re.search(words, told) else [f"{words!r} is not in {told[-600:]!r}"]
    lines = user.trainings(marker)
    ranks, ended = sum(HOSTS.values()), sum(" end " in line for line in lines)
    if sum(" start " in line for line in lines) != ranks or ended != (ranks if status["state"] == "COMPLETED" else 0):
        wrong.append(f"trained: {lines}")
    return wrong


def one(key: str) -> dict[str, Any]:
    """A round on a cluster of its own."""
    kind = list(KINDS)[int(key) % len(KINDS)]
    node = random.Random(int(key)).choice(KINDS[kind][0] or ("n1",))
    with Cluster.start(nodes=3, gpus_per_node=0, accounting=False) as cluster:
        connect_nodes(cluster)
        user = SshUser(cluster, cluster.user_folder(f"kill{key}-"))
        user.profile(f"hosts: {json.dumps(HOSTS)}")
        wrong, seconds = play(user, int(key), kind, node)
    return {"wrong": wrong, "kind": kind, "node": node, "seconds": seconds}


def prove(rounds: Rounds) -> int:
    """The rounds that are left; 1 if one went wrong."""
    return rounds.run(GROUP, rounds.numbers(GROUP, 100), one)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""
    good = sum(one["ok"] for one in rounds.values())
    lines = ["| killed | rounds | as expected | longest until nothing was left | then |", "|---|---|---|---|---|"]
    for kind, (_, (state, words)) in KINDS.items():
        mine = [one for one in rounds.values() if one.get("kind") == kind]
        longest = max((seconds for one in mine if (seconds := one.get("seconds")) is not None), default=0.0)
        then = f"{state}: `{words.format(node='HOST')}`" if words else state
        lines.append(f"| {kind} | {len(mine)} | {sum(one['ok'] for one in mine)} | {longest:.1f} s | {then} |")
    text = "\n".join(line.replace(".* ", "").replace("|n1 did not answer", "") for line in lines)
    return (
        f"{good} of {len(rounds)} rounds ended as expected, with several runs side by side on a busy machine.\n\n{text}"
    )
