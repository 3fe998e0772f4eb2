"""Two jobs with roles start together on the same nodes: no port is that of both, each client has its own server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.roles.stage import SERVES, Stage
from tests.prove.rounds import Rounds
from tests.prove.state import keep_remains
from tests.slurm.user import User

GROUP = "role pairs"
ROUNDS = 100
CLIENT = """\
: >"$PLACE/here.$HPC_LAUNCH_RUN_NAME"
until [ "$(ls $PLACE/here.* | wc -l)" -eq 2 ]; do sleep 0.2; done
for url in $ROLE_SERVER_URL $ROLE_OTHER_URL $ROLE_SERVER_URL; do
    curl -sf $url >>"$PLACE/heard.$HPC_LAUNCH_RUN_NAME" || exit 1
done
: >"$PLACE/done.$HPC_LAUNCH_RUN_NAME"
until [ "$(ls $PLACE/done.* | wc -l)" -eq 2 ]; do sleep 0.2; done
"""
"""Asks while the other job's servers run, too, and stays until the other has asked."""


def play(user: User, number: int) -> list[str]:
    """One pair: what is wrong. Every second one has both jobs on two nodes, the others on one."""
    stages = [Stage(user), Stage(user)]
    server = {"does": SERVES, "ready": {"http": "/", "within": "60s"}}
    alone = number % 2 == 0
    roles: dict[str, dict[str, Any]] = {
        "server": server,
        "other": {**server, "beside": "server", "ports": ["admin"]},
        "train": {
            "does": CLIENT,
            "after": ["server", "other"],
            "ends": "job",
            **({"beside": "server"} if alone else {}),
        },
    }
    files = [
        one.job(f"pair{number}{name}", roles, nodes=1 if alone else 2) for one, name in zip(stages, "ab", strict=True)
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Stage.submit, stages, files))
    wrong = []
    for one in stages:
        wait_until(lambda one=one: bool(one.record("end.json")), patience(90), one.told)  # type: ignore[misc]
        name, end = one.run["run"], one.record("end.json")
        heard = (user.home / f"heard.{name}").read_text() if (user.home / f"heard.{name}").exists() else ""
        wrong += [] if end["exit_code"] == 0 else [f"{name}: exit code {end['exit_code']}: {one.told()[-300:]}"]
        wrong += [] if heard == 3 * name else [f"{name} heard {heard!r}"]
    first, second = (ports(one) for one in stages)
    return wrong + [f"both have {port}" for port in sorted(first & second)]


def ports(stage: Stage) -> set[tuple[int, int]]:
    """All ports that a job has, with the numbers of their nodes."""
    found = set()
    for node in range(2):
        for one in stage.record(f"roles/ports-{node}.json").values():
            single = {one["port"], one["master"], *one["named"].values()}
            found |= {(node, port) for port in single | set(range(one["range"], one["range"] + one["ranged"]))}
    return found


def prove(rounds: Rounds) -> int:
    """The pairs that are left; 1 if one went wrong. Each worker has its own nodes, on which only one pair runs."""
    with Cluster.start(nodes=2, gpus_per_node=0, accounting=False) as cluster:

        def one(key: str) -> dict[str, Any]:
            user, wrong = User(cluster, cluster.user_folder(f"pair{key}-")), ["it broke"]
            try:
                wrong = play(user, int(key))
            finally:
                if wrong:
                    keep_remains(user, f"pair-{key}")
            return {"wrong": wrong}

        return rounds.run(GROUP, rounds.numbers(GROUP, ROUNDS), one)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""
    good = sum(one["ok"] for one in rounds.values())
    shared = sum(any("both have" in text for text in one["wrong"]) for one in rounds.values())
    return f"""{len(rounds)} pairs of jobs of one user, submitted together, each with two servers and a client on the
same one or two nodes, several pairs at a time: in {shared}, a port was that of both jobs; in {good}, both were right:
each client heard its own servers only."""
