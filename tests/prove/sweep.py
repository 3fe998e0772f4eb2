"""Faults while the points of a sweep are submitted as several job arrays: every point trains exactly once.

A round is one sweep. Its number decides on the fault and, with a seed, on the moment. Each training writes a line into
its point's folder, so that what really ran is counted, whatever hpc-launch says. Until the queue is empty nobody looks
at the sweep: what the fault left undone is done by the points that end, or else by the next command.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_launch.runs.groups.job_arrays import STEPS
from hpc_launch.runs.submitting.reconcile import GIVE_UP_S
from hpc_launch.runs.submitting.run_store import KILL_AFTER, STOP_AFTER
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.rounds import Rounds, processes, thaw
from tests.prove.state import keep_remains
from tests.slurm.user import User

POINTS, ARRAY = 12, 4
CLUSTER: dict[str, Any] = {
    "nodes": 2,
    "gpus_per_node": 0,
    "slurm_conf": (f"MaxArraySize={ARRAY}", "AccountingStorageEnforce=limits"),
}
PATIENCE_S = GIVE_UP_S + 120
"""A submission whose process is on another host, of which nothing tells that it is gone, is given up after a while."""
JOB = f"""
name: many
account: proj
launcher: none
command: [sh, -c, 'echo "$HPC_LAUNCH_ATTEMPT $SLURM_JOB_ID" >>"$HPC_LAUNCH_RUN_DIR/trained"; sleep $(($2 % 3))', x, --]
time: 5
cpus_per_node: 1
hang: false
environment: {{source: [HOME/no-faults.sh]}}
sweep: {{grid: {{args.point: {list(range(POINTS))}}}}}
"""


class Round:
    """One sweep of a user, and what disturbs its submission."""

    def __init__(self, user: User, number: int) -> None:
        """Begin nothing yet."""
        self.user, self.dice = user, random.Random(number)
        self.step = f"{self.dice.choice(STEPS)}#{self.dice.randint(1, POINTS // ARRAY)}"
        self.array = self.dice.randint(1, POINTS // ARRAY)
        self.clients: list[subprocess.Popen[str]] = []

    def submit(self, **env: str) -> None:
        """Start the submission."""
        # The fault is the client's, not that of its jobs' end hooks.
        self.user.job(f"unset {KILL_AFTER} {STOP_AFTER}\n", "no-faults.sh")
        job = self.user.job(JOB.replace("HOME/", f"{self.user.home}/"))
        self.clients.append(self.user.popen("submit", job, env=env))

    def until_array(self) -> None:
        """Wait until the array of this round is being submitted, or the client has ended."""
        array, client = f"runs/*/arrays/{self.array:03d}", self.clients[0]
        wait_until(lambda: any(self.user.home.glob(array)) or client.poll() is not None, every=0.01)
        time.sleep(self.dice.uniform(0, 0.4))

    @property
    def folder(self) -> Path:
        """The folder of the sweep."""
        (folder,) = (path.parent for path in self.user.home.glob("runs/*/sweep.json"))
        return folder

    def trained(self) -> list[int]:
        """How often each point trained."""
        files = (self.folder / f"{self.folder.name}.{number}" / "trained" for number in range(POINTS))
        return [len(path.read_text().splitlines()) if path.exists() else 0 for path in files]


def restart_controller(one: Round) -> None:
    """Restart the controller while an array is being submitted."""
    cluster = one.user.cluster
    one.submit()
    one.until_array()
    cluster.stop_controller()
    time.sleep(one.dice.uniform(0, 3))
    cluster.start_controller()


def refuse_half_way(one: Round) -> None:
    """Let Slurm refuse the rest: the user's limit of submitted jobs falls between two arrays."""
    one.submit(**{STOP_AFTER: f"array job#{one.dice.randint(1, 2)}"})
    _until_frozen(one)
    limit(one.user.cluster, one.dice.randint(2, ARRAY))
    thaw(str(one.user.home))


def kill_login_node(one: Round) -> None:
    """Kill the client after some step of some array."""
    one.submit(**{KILL_AFTER: one.step})


def stop_accounting(one: Round) -> None:
    """No slurmdbd while the points are submitted, and for a while after."""
    cluster = one.user.cluster
    cluster.stop_accounting(kill=one.dice.random() < 0.5)
    one.submit(**({KILL_AFTER: one.step} if one.dice.random() < 0.5 else {}))
    one.clients[0].wait(timeout=120)
    time.sleep(one.dice.uniform(0, 5))
    cluster.start_accounting()


def two_drivers(one: Round) -> None:
    """Two further drivers submit while the first one is frozen at some step; then it goes on."""
    one.submit(**{STOP_AFTER: one.step})
    _until_frozen(one)
    one.clients += [one.user.popen("status", "@last") for _ in range(2)]
    time.sleep(one.dice.uniform(0, 30))
    thaw(str(one.user.home))


FAULTS: dict[str, Callable[[Round], None]] = {
    "the controller restarts during a submission": restart_controller,
    "a limit refuses the submission half-way": refuse_half_way,
    "the submitting process is killed at some step": kill_login_node,
    "slurmdbd is down": stop_accounting,
    "two drivers submit, a third is frozen meanwhile": two_drivers,
}
KINDS = list(FAULTS)


def play(user: User, number: int) -> tuple[list[str], dict[str, Any]]:
    """One round: what is wrong, and what happened."""
    one, began = Round(user, number), time.monotonic()
    FAULTS[KINDS[number % len(KINDS)]](one)
    for client in one.clients:
        client.communicate(timeout=PATIENCE_S)
    quiet = _until_quiet(user)
    unattended = sum(count > 0 for count in one.trained())
    end, state = time.monotonic() + PATIENCE_S, ""
    while state != "COMPLETED" and time.monotonic() < end:
        drivers = [user.popen("status", "@last", "--json") for _ in range(one.dice.randint(1, 2))]
        answers = [driver.communicate()[0] for driver in drivers]
        state = next((json.loads(answer)["state"] for answer in answers if answer.startswith("{")), "")
        time.sleep(2)
    trained = one.trained()
    wrong = [f"point {point} trained {count} times" for point, count in enumerate(trained) if count != 1]
    wrong += [f"the sweep is {state}"] if state != "COMPLETED" else []
    arrays = list(one.folder.glob("arrays/*/job.json"))
    facts = {
        "unattended": unattended,
        "arrays": len(arrays),
        "took_s": round(time.monotonic() - began),
        "quiet": quiet,
    }
    return wrong, facts


def limit(cluster: Cluster, jobs: int) -> None:
    """Limit how many jobs the user may have submitted."""
    words = ["sacctmgr", "--immediate", "modify", "user", cluster.user, "set", f"MaxSubmitJobs={jobs}"]
    cluster.run(words, user="root", check=True)


def _until_quiet(user: User) -> bool:
    """Wait until the queue has been empty for a moment: then nobody advances the sweep any more."""
    empty, end = 0, time.monotonic() + 240
    while empty < 3 and time.monotonic() < end:
        empty = empty + 1 if user.cluster.jobs() == [] else 0
        time.sleep(0.7)
    return empty == 3


def _until_frozen(one: Round) -> None:
    wait_until(
        lambda: any(process.frozen for process in processes(str(one.user.home))) or one.clients[0].poll() is not None,
        every=0.05,
    )


def one(key: str) -> dict[str, Any]:
    """A round on a cluster of its own."""
    with Cluster.start(**CLUSTER) as cluster:
        user, wrong = User(cluster, cluster.user_folder(f"sweep{key}-")), ["it broke"]
        try:
            wrong, facts = play(user, int(key))
        finally:
            if wrong:
                keep_remains(user, f"sweep-{key}")
    return {"wrong": wrong, "kind": KINDS[int(key) % len(KINDS)], **facts}


def prove(rounds: Rounds) -> int:
    """The rounds that are left; 1 if one went wrong."""
    return rounds.run("sweep", rounds.numbers("sweep", 50), one)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""
    lines = [
        "| fault | rounds | every point trained once | of them with nobody watching |",
        "|---|---|---|---|",
    ]
    for kind in KINDS:
        mine = [one for one in rounds.values() if one.get("kind") == kind]
        good = sum(one["ok"] for one in mine)
        alone = sum(one["ok"] and one["unattended"] == POINTS for one in mine)
        lines.append(f"| {kind} | {len(mine)} | {good} | {alone} |")
    good, doubled = (
        sum(one["ok"] for one in rounds.values()),
        sum(any("trained 2" in text for text in one["wrong"]) for one in rounds.values()),
    )
    arrays = Counter(one.get("arrays") for one in rounds.values() if one["ok"])
    told = ", ".join(f"{count} with {number}" for number, count in sorted(arrays.items()))
    return "\n".join([
        *lines,
        "",
        f"In {good} of {len(rounds)} rounds, each of the {POINTS} points trained exactly once; in {doubled}, a",
        f"point trained twice. Without a fault there are {POINTS // ARRAY} arrays; the rounds had: {told}.",
    ])  # fmt: skip
