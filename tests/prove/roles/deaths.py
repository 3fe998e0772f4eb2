"""Roles that die: the first is named, the job ends soon, and no process is left on any node.

A round is one job with a server and a training on two or three nodes. Its number decides on what dies, and with a seed
on the moment. Each role has a process in a session of its own, which nobody but hpc-launch and Slurm ends.
"""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.roles.kinds import KINDS, RANK, Kind
from tests.prove.roles.stage import GRACE_S, Stage
from tests.prove.rounds import Rounds, processes
from tests.prove.state import keep_remains
from tests.slurm.user import User

GROUP = "role deaths"
ROUNDS = 100
END_S = 10.0
"""In this time and the grace time the job has ended."""
NODES: dict[str, Any] = {"nodes": 3, "gpus_per_node": 0, "accounting": False}


def kind_of(number: int) -> Kind:
    """All of them in turn."""
    return KINDS[number % len(KINDS)]


def play(stage: Stage, number: int, kind: Kind) -> tuple[list[str], dict[str, Any]]:
    """One round: what is wrong, and the seconds that the end took."""
    for name, text in (("broken.sh", "return 5\n"), ("rank.py", RANK)):
        stage.user.cluster.write(stage.home / name, text)
    if "SIGKILL to rank" in kind.what:
        stage.order("kill")
    keys = json.loads(json.dumps(kind.keys).replace("$PLACE", str(stage.home)))
    server = {"does": kind.server, "ready": {"http": "/", "within": "60s"}, **keys.get("server", {})}
    train = {"nodes": "rest", "does": kind.train, "after": "server", "ends": "job", **keys.get("train", {})}
    if "script" in train:
        del train["does"]
    if "beside" in server:
        train["nodes"] = 1
    stage.submit(stage.job(f"death{number}", {"server": server, "train": train}, **{"nodes": 2, **keys.get("job", {})}))
    wait_until((stage.attempt / "claim").exists, patience(60), stage.told)
    struck = 0.0
    if kind.at is not None:
        stage.until(kind.at, "ready")
        time.sleep(random.Random(number).uniform(0, 1))
        struck = time.time()
        kind.strike(stage)
        struck = time.time() if kind.own else struck
    died = stage.time_of("died") or struck or None
    seen = _until_over(stage)
    ended = stage.over() or seen
    died = (stage.time_of("died") or stage.record("cancel.json").get("sent") or died or ended) + kind.within
    left = stage.left()
    gone = time.time() - seen
    wrong = [f"left: {one}" for one in left]
    took = ended - died
    if took > patience(END_S) + GRACE_S:
        wrong.append(f"the job ended after {took:.1f} s")
    return [*wrong, *_wrong(stage, kind)], {"took_s": round(took, 2), "gone_s": round(gone, 2)}


def _until_over(stage: Stage) -> float:
    """When the batch script was gone, by its process."""

    def over() -> bool:
        commands = [one.command for one in processes(f"{stage.home}/")]
        return not any("slurm_script" in text or "script.sh" in text for text in commands)

    wait_until(over, patience(120), stage.told, every=0.2)
    return time.time()


def _wrong(stage: Stage, kind: Kind) -> list[str]:
    """What `status` and `why` say that is not so."""
    status = stage.user.until(stage.run["run"], "COMPLETED", "FAILED", "STOPPED", "CANCELLED", seconds=patience(60))
    wrong = [] if re.fullmatch(kind.state, status["state"]) else [f"{status['state']}: {status['reason']}"]
    told = json.loads(stage.user.launch("why", stage.run["run"], "--json").stdout)
    first = told["first_failure"] or {}
    said = " ".join([str(told["class"]), str(told["cause"]), *told["also"], *(one["text"] for one in told["evidence"])])
    if first.get("role") != kind.named:
        wrong.append(f"named {first.get('role')} and not {kind.named}: {said[:300]}")
    if kind.named is not None:
        node = stage.role(kind.named)["nodes"][kind.node]
        wrong += [] if first.get("node") == node else [f"node {first.get('node')} and not {node}: {said[:300]}"]
    if kind.rank is not None and first.get("rank") != kind.rank:
        wrong.append(f"rank {first.get('rank')}: {said[:300]}")
    code = f"exit code {kind.code} "
    if (kind.code is not None and code not in said + " ") or not re.search(kind.says, said):
        wrong.append(f"{code if kind.code is not None else ''}{kind.says} not in {said[:400]}")
    asked = status["attempts"][0]["exit_code"]
    if kind.code is not None and asked != (kind.code or 1):
        wrong.append(f"the job's exit code is {asked}")
    if kind.what.endswith("saves") and stage.time_of("died") is None:
        wrong.append("the training could not save")
    return wrong


def one(cluster: Cluster, number: int, kind: Kind) -> dict[str, Any]:
    """A round as a user of this cluster."""
    user, wrong, facts = User(cluster, cluster.user_folder(f"death{number}-")), ["it broke"], dict[str, Any]()
    try:
        wrong, facts = play(Stage(user), number, kind)
    finally:
        if wrong:
            keep_remains(user, f"death-{number}")
    return {"wrong": wrong, "kind": kind.what, **facts}


def prove(rounds: Rounds) -> int:
    """The rounds that are left, most of them on one cluster; 1 if one went wrong."""
    left = rounds.numbers(GROUP, ROUNDS)
    with Cluster.start(**NODES) as shared:

        def each(key: str) -> dict[str, Any]:
            kind = kind_of(int(key))
            if not kind.own:
                return one(shared, int(key), kind)
            with Cluster.start(**NODES) as own:
                return one(own, int(key), kind)

        return rounds.run(GROUP, left, each)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""
    lines = ["| what dies | rounds | as expected | longest until the job ended |", "|---|---|---|---|"]
    for kind in KINDS:
        mine = [one for one in rounds.values() if one.get("kind") == kind.what]
        longest = max((one["took_s"] for one in mine if "took_s" in one), default=0.0)
        told = f"{longest:.1f} s" if longest > 0 else "–"
        lines.append(f"| {kind.what} | {len(mine)} | {sum(one['ok'] for one in mine)} | {told} |")
    good, left = sum(one["ok"] for one in rounds.values()), _said(rounds, "left: ")
    late = sorted({one["kind"] for one in rounds.values() if one.get("took_s", 0) > END_S + GRACE_S})
    return f"""{len(rounds)} jobs, a server and a training on two or three nodes, of which one part dies. As expected
means that `why` names the role that failed first with its node, its exit code and its rank, or none where no role
failed, and that no process of the job is left on any node. {good} of {len(rounds)} were; in {left}, a process was left.
All jobs ended within {END_S:.0f} s and the grace time, here {GRACE_S} s, other than: {"; ".join(late) or "none"}. For a
lost node the time begins when Slurm has noticed it; that a slurmstepd is gone, srun notices late.

""" + "\n".join(lines)


def _said(rounds: dict[str, Any], words: str) -> int:
    """In how many rounds something was wrong that has these words."""
    return sum(any(words in text for text in one["wrong"]) for one in rounds.values())
