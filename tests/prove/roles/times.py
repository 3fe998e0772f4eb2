"""How long roles take: from the start of the job until all are ready, from a death until the address answers again, and
for many roles or nodes at once; and how often the controller is called."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.roles.kinds import kill_server
from tests.prove.roles.stage import SERVES, STRAY, Stage
from tests.prove.rounds import Rounds
from tests.prove.state import keep_remains
from tests.slurm.user import User

GROUP = "role times"
OWN_S = 2.0
"""What the server of a round needs by itself."""
START_S, RESTART_S, MANY_S = 3.0, 30.0, 20.0
"""The goals: beyond the slowest role's own start; until the address answers again; until 64 are ready."""
MANY = 64
SMALL: dict[str, Any] = {"nodes": 2, "gpus_per_node": 0, "accounting": False}
SITE = (("limits: [{nodes: 1-4, time: 1:00:00}]", "limits: [{nodes: 1-100, time: 1:00:00}]"),)
ENDS: dict[str, Any] = {"does": "until [ -e $PLACE/go ]; do sleep 0.2; done", "ends": "job"}
READY: dict[str, Any] = {"http": "/", "within": "5m"}
LISTENS = (
    "exec python3 -S -E -c 'import os, socket, time; "
    's = socket.create_server(("", int(os.environ["ROLE_PORT"]))); time.sleep(3600)\''
)
"""A server that starts at once: all nodes here share two cores."""


def all_ready(stage: Stage, names: int, seconds: float) -> float:
    """Seconds from the start of the job's script until all roles were ready."""

    def ready() -> bool:
        roles = stage.record("roles.json").get("roles", [])
        return len(roles) == names and all(one["ready_since"] for one in roles)

    wait_until(lambda: ready() or bool(stage.record("end.json")), patience(seconds), stage.told, every=0.3)
    assert ready(), stage.told()
    last = max(one["ready_since"] for one in stage.record("roles.json")["roles"])
    return float(last - (stage.attempt / "claim").stat().st_mtime)


def ended(stage: Stage) -> None:
    """Let the job end."""
    stage.order("go")
    wait_until(lambda: stage.over() is not None, patience(120), stage.told, every=0.3)
    assert stage.record("end.json")["exit_code"] == 0, stage.told()


def start(stage: Stage) -> dict[str, Any]:
    """A server that needs two seconds, and a training after it."""
    server = {"does": f"sleep {OWN_S}; {SERVES}", "ready": READY}
    stage.submit(stage.job("start", {"server": server, "train": {**ENDS, "after": "server"}}, nodes=2))
    beyond = all_ready(stage, 2, 60) - OWN_S
    ended(stage)
    return {"seconds": round(beyond, 2), "limit": START_S}


def restart(stage: Stage) -> dict[str, Any]:
    """A server that is killed; its client asks the same address until it answers again."""
    asks = "curl -sf $ROLE_SERVER_URL >/dev/null && date +%s.%N >$PLACE/draft && mv $PLACE/draft $PLACE/answered"
    client = f"until [ -e $PLACE/go ]; do {asks}; sleep 0.1; done"
    server = {"does": STRAY + SERVES, "ready": READY, "restart": 1}
    stage.submit(
        stage.job("restart", {"server": server, "train": {**ENDS, "does": client, "after": "server"}}, nodes=2)
    )
    stage.until("train", "ready")
    wait_until(lambda: stage.time_of("answered") is not None, patience(30), stage.told)
    address = stage.role("server")["url"]
    kill_server(stage)
    died = time.time()
    wait_until(lambda: stage.role("server").get("restarts") == 1, patience(30), stage.told)
    wait_until(lambda: (stage.time_of("answered") or 0) > died + 0.3, patience(60), stage.told, every=0.05)
    again = (stage.time_of("answered") or 0) - died
    assert stage.role("server")["url"] == address
    ended(stage)
    return {"seconds": round(again, 2), "limit": RESTART_S}


def many(stage: Stage) -> dict[str, Any]:
    """64 servers, each a step on a node of its own, and a training beside the first."""
    stage.user.site("", *SITE)
    servers = {"does": LISTENS, "ready": {"tcp": True, "within": "5m"}, "replicas": MANY}
    roles: dict[str, dict[str, Any]] = {"server": servers, "train": {**ENDS, "after": "server", "beside": "server"}}
    stage.submit(stage.job("many", roles, nodes=MANY))
    seconds = all_ready(stage, MANY + 1, 300)
    ended(stage)
    return {"seconds": round(seconds, 2), "limit": MANY_S}


def calls(stage: Stage, nodes: int) -> dict[str, Any]:
    """A server on all of so many nodes, and a training beside it: what the user's processes ask of the controller."""
    stage.user.site("", *SITE)
    cluster = stage.user.cluster
    server = {"does": SERVES, "ready": READY, "nodes": nodes}
    roles: dict[str, dict[str, Any]] = {"server": server, "train": {**ENDS, "after": "server", "beside": "server"}}
    file = stage.job("calls", roles, nodes=nodes)
    cluster.run(["sdiag", "--reset"], user="root", check=True)
    stage.submit(file)
    all_ready(stage, 2, 200)
    ended(stage)
    said = cluster.run(["sdiag"], user="root", check=True).stdout
    found = re.search(rf"^\s*{cluster.user}\s*\(\s*\d+\) count:(\d+)", said, re.MULTILINE)
    return {"calls": int(found[1]) if found else 0, "nodes": nodes}


KEYS = (
    *(f"start {number}" for number in range(5)),
    *(f"restart {number}" for number in range(5)),
    f"{MANY} roles",
    *(f"calls for {nodes} nodes" for nodes in (2, 16, MANY)),
)


def one(key: str) -> dict[str, Any]:
    """A measurement on a cluster of its own."""
    words = key.split()
    size = MANY if words[1] == "roles" else int(words[2]) if words[0] == "calls" else SMALL["nodes"]
    with Cluster.start(**{**SMALL, "nodes": size}) as cluster:
        user, facts = User(cluster, cluster.user_folder("times-")), dict[str, Any]()
        try:
            stage = Stage(user)
            facts = (
                many(stage)
                if words[1] == "roles"
                else calls(stage, size)
                if words[0] == "calls"
                else {"start": start, "restart": restart}[words[0]](stage)
            )
        finally:
            if not facts:
                keep_remains(user, key.replace(" ", "-"))
    slow = "seconds" in facts and facts["seconds"] > patience(facts["limit"])
    return {"wrong": [f"{facts['seconds']} s"] if slow else [], **facts}


def prove(rounds: Rounds) -> int:
    """The measurements that are left, one after another; 1 if a goal was missed."""
    rounds.workers = 1
    return rounds.run(GROUP, rounds.left(GROUP, KEYS), one)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""

    def of(word: str) -> list[float]:
        return sorted(one["seconds"] for key, one in rounds.items() if key.startswith(word) and "seconds" in one)

    def range_of(found: list[float]) -> str:
        if len(found) == 1:
            return f"{found[0]:.1f} s, once"
        return f"{found[0]:.1f} to {found[-1]:.1f} s, {len(found)} times" if found else "not measured"

    rows = (
        (f"start of the job until all roles are ready, beyond the {OWN_S:.0f} s of the slowest", "start", START_S),
        ("death of a server until its address answers again", "restart", RESTART_S),
        (f"{MANY} servers, each a step on a node of its own, until all are ready", str(MANY), MANY_S),
    )
    lines = ["| measured | found | goal |", "|---|---|---|"]
    lines += [f"| {what} | {range_of(of(word))} | {goal:.0f} s |" for what, word, goal in rows]
    counted = {one["nodes"]: one["calls"] for one in rounds.values() if "calls" in one}
    told = ", ".join(f"{calls} with {nodes}" for nodes, calls in sorted(counted.items()))
    what = "calls to the controller of a job with two roles, its submission included, by nodes"
    lines.append(f"| {what} | {told or 'not measured'} | constant |")
    return "\n".join(lines)
