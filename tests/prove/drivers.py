"""Drivers that are killed and frozen at every step, many at once: each attempt is trained once, and the run ends well.

A round is one run whose first attempt fails. Five drivers from outside and the job's own hook are at it, each with a
step after which it is killed or freezes; the frozen ones wake up later. Each training writes a line into a file, so
that what really ran is counted, whatever hpc-launch says.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hpc_launch.retry import recover_run
from hpc_launch.runs.submitting import submit_attempt
from hpc_launch.runs.submitting.reconcile import GIVE_UP_S
from hpc_launch.runs.submitting.run_store import KILL_AFTER, STOP_AFTER
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.rounds import Rounds, gone, thaw
from tests.slurm.user import User

STEPS = (*recover_run.STEPS, *submit_attempt.STEPS[1:])
FAULTS = [(kind, step) for step in STEPS for kind in (KILL_AFTER, STOP_AFTER)]
KINDS = ("watch", "watch", "status", "list", "watch")
TRAINS = """\
echo "$HPC_LAUNCH_ATTEMPT $SLURM_JOB_ID" >>{marker}
while [ ! -e {go} ]; do sleep 0.1; done
[ "$HPC_LAUNCH_ATTEMPT" -gt 1 ] || {{ echo "OSError: [Errno 116] Stale file handle"; exit 1; }}
"""
PATIENCE_S = GIVE_UP_S + 120
"""A driver on another host, of which nothing tells that it is gone, is given up after ten minutes."""
OVER = ("COMPLETED", "FAILED", "STOPPED", "CANCELLED")


def play(user: User, number: int) -> tuple[list[str], Counter[str]]:
    """One round: what is wrong, and which faults really happened."""
    dice = random.Random(number)
    marker, go = user.home / "trained", user.home / "go"
    # What the job's own hook inherits.
    hook = user.job("export {}={}\n".format(*dice.choice(FAULTS)), "hook.sh")
    job: dict[str, Any] = {
        "name": f"round{number}", "launcher": "srun", "cpus_per_node": 1, "hang": False, "retry": {"backoff": "1s"},
        "command": ["sh", "-c", TRAINS.format(marker=marker, go=go)], "environment": {"source": [str(hook)]},
    }  # fmt: skip
    run = user.submit(json.dumps(job))
    wait_until(marker.exists)
    planned = [FAULTS[(number * len(KINDS) + index) % len(FAULTS)] for index in range(len(KINDS))]
    drivers = [_driver(user, run["run"], name, *fault) for name, fault in zip(KINDS, planned, strict=True)]
    time.sleep(1.5)  # all of them look at the run before it fails
    user.cluster.run(["touch", str(go)], check=True)
    happened: Counter[str] = Counter()
    began = time.monotonic()
    for _ in range(dice.randint(2, 4)):
        time.sleep(1)
        if dice.random() < 0.5:
            user.launch("status", run["run"])
    status, end = {}, time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        happened["frozen"] += thaw(str(user.home))
        status = user.status(run["run"])
        if status["state"] in OVER and not thaw(str(user.home)):
            break
        time.sleep(1)
    for driver in drivers:
        try:
            driver.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            user.cluster.kill_tree(driver)
            driver.communicate()
        happened["killed"] += driver.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    happened["late"] += time.monotonic() - began > GIVE_UP_S
    wait_until(lambda: gone(user.cluster, f"round{number}"), explain=lambda: f"left: {user.cluster.jobs()}")
    return _wrong(user.status(run["run"]), marker), happened


def _driver(user: User, run: str, name: str, kind: str, step: str) -> subprocess.Popen[str]:
    if name == "watch":
        return user.popen("watch", run, env={kind: step})
    # The next command of somebody, over and over until it is killed or the run is over.
    command = f"hpc-launch status {run}" if name == "status" else "hpc-launch list"
    loop = (
        f"for i in $(seq 12); do {command} >/dev/null 2>&1; code=$?; [ $code -lt 128 ] || exit $code; sleep 0.5; done"
    )
    return user.cluster.popen(["sh", "-c", loop], cwd=user.home, env={**user.env, kind: step})


def _wrong(status: dict[str, Any], marker: Path) -> list[str]:
    ran = Counter(line.split()[0] for line in marker.read_text().splitlines())
    attempts = [str(one["number"]) for one in status["attempts"] if one["state"] != "VOID"]
    wrong = [f"attempt {number} trained {count} times" for number, count in ran.items() if count > 1]
    if sorted(ran) != sorted(attempts):
        wrong.append(f"trained {sorted(ran)}, attempts {status['attempts']}")
    if status["state"] != "COMPLETED" or len(ran) != 2:
        wrong.append(f"{status['state']}: {status['reason']}; trainings {dict(ran)}")
    return wrong


def prove(rounds: Rounds) -> int:
    """The rounds that are left, on one cluster; 1 if one went wrong."""
    with Cluster.start(nodes=2, gpus_per_node=0, accounting=False) as cluster:

        def one(key: str) -> dict[str, Any]:
            wrong, happened = play(User(cluster, cluster.user_folder(f"round{key}-")), int(key))
            return {"wrong": wrong, **happened}

        return rounds.run("drivers", rounds.numbers("drivers", 200), one)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/fault-matrix.md."""
    good = sum(one["ok"] for one in rounds.values())
    killed, frozen, late = (sum(one.get(name, 0) for one in rounds.values()) for name in ("killed", "frozen", "late"))
    doubled = sum("times" in text for one in rounds.values() for text in one["wrong"])
    return f"""## Drivers that are killed and frozen

In each round, a run fails once, and six drivers act on it: five external ones and the job's own hook. Each is killed
(SIGKILL) or frozen (SIGSTOP, resumed later) after one step of
[the protocol](../explanation/recovery-in-detail.md#who-does-it).
In {good} of {len(rounds)} rounds, each attempt was trained exactly once and the run COMPLETED with its second attempt.
{killed} drivers were killed and {frozen} frozen at their step; the others found nothing left to do. In
{len(rounds) - doubled} of {len(rounds)} rounds, no attempt was trained twice. Rounds that took ten
minutes, because nothing showed that a driver was gone: {late}."""
