"""Jobs and nodes that are killed at every step of a restart inside the job: each attempt trains at most once.

A round is one run whose first attempt fails. At one step of what follows, its batch shell, its first node or its second
node is killed. Each rank notes when it starts, and that it lives, five times a second: so what really ran is counted,
and no attempt may live on when the next one has begun. The number of a round decides on its setting.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hpc_launch.retry import recover_run
from hpc_launch.runs.submitting import successor_job
from hpc_launch.runs.submitting.reconcile import GIVE_UP_S
from hpc_launch.runs.submitting.run_store import STOP_AFTER
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.rounds import Rounds, counted, gone, processes, thaw
from tests.prove.scene import OVER
from tests.prove.state import keep_remains
from tests.slurm.user import User

HOOK = (*recover_run.STEPS, *successor_job.CONTINUE_STEPS)
"""The end hook is frozen after one of these steps while the victim is killed."""
POINTS = (*HOOK, "cleaning", "exec", "training")
"""And when the shell cleans the nodes, becomes the next attempt's script, and when that attempt trains."""
VICTIMS = ("shell", "first", "second")
KINDS = [(victim, point) for point in POINTS for victim in VICTIMS]
TRAINS = """\
note() {{ echo "$HPC_LAUNCH_ATTEMPT $RANK $1 $(date +%s.%N) $SLURM_JOB_ID $(uname -n)" >>{marker}; }}
note start
for (( i = 0; i < 40 || HPC_LAUNCH_ATTEMPT == 1; i++ )); do
    sleep 0.2
    note lives
    [ "$HPC_LAUNCH_ATTEMPT$RANK" = 10 ] && [ -e {go} ] || continue
    echo "OSError: [Errno 116] Stale file handle"
    exit 1
done
"""


class Setting(NamedTuple):
    """Where a round runs."""

    slurm: str | None
    """The system whose Slurm it is, bookworm by default."""
    launcher: str
    spares: int
    accounting: bool

    def __str__(self) -> str:
        words = [f"Slurm of {self.slurm or 'bookworm'}", self.launcher, "a spare" if self.spares else "no spare"]
        return ", ".join([*words, "accounting" if self.accounting else "no accounting"])


def setting_of(number: int) -> Setting:
    """The first rounds are on bookworm with srun, the others on trixie and sid, a third of them with torchrun."""
    cycle, accounting = number // len(KINDS), number % 2 == 0
    if cycle < 3:
        return Setting(None, "srun", cycle % 2, accounting)
    launcher = "torchrun" if number // len(VICTIMS) % 3 == 0 else "srun"
    return Setting(("trixie", "sid")[cycle % 2], launcher, cycle // 2 % 2, accounting)


def play(user: User, number: int) -> tuple[list[str], str, bool]:
    """One round: what is wrong, the state in which the run ended, and whether it came to the step."""
    (victim, point), setting = KINDS[number % len(KINDS)], setting_of(number)
    marker, go = user.home / "trained", user.home / "go"
    frozen = point if point in HOOK else ""
    hook = user.job(f"export {STOP_AFTER}={frozen}\n" if frozen else "", "hook.sh")
    job: dict[str, Any] = {
        "name": f"killed{number}", "launcher": setting.launcher, "nodes": 2, "cpus_per_node": 1,
        "spares": setting.spares, "hang": {"after": "5m"}, "retry": {"backoff": "1s", "no_progress": 4},
        "environment": {"source": [str(hook)]}, "time": "00:20:00",
        "command": ["bash", "-c", TRAINS.format(marker=marker, go=go)],
    }  # fmt: skip
    run = user.submit(json.dumps(job))
    wait_until(lambda: len(user.trainings(marker)) > 2)
    watch = user.popen("watch", run["run"]) if random.Random(number).random() < 0.5 else None
    try:
        user.cluster.run(["touch", str(go)], check=True)
        reached = _reached(run, marker, point)
        wait_until(lambda: reached() or _past(run), 120, lambda: f"never {point}: {user.status(run['run'])}", 0.02)
        killed = not _past(run)
        if killed:
            _kill(user, run, victim)
        thaw(f"/{run['run']}")
        status = user.until(run["run"], *OVER, seconds=GIVE_UP_S + 300)
        wait_until(lambda: gone(user.cluster, f"killed{number}"), explain=lambda: f"left: {user.cluster.jobs()}")
    finally:
        if watch is not None:
            user.cluster.kill_tree(watch)
            watch.communicate()
    return _wrong(status, marker), status["state"], killed


def _reached(run: dict[str, Any], marker: Path, point: str) -> Callable[[], bool]:
    """Whether the restart has come to the step."""
    first, second = (Path(run["folder"], "attempts", number, "batch.log") for number in ("001", "002"))
    return {
        "cleaning": lambda: "continues in this job" in first.read_text(),
        "exec": second.exists,
        "training": lambda: any(line.startswith("2 0 ") for line in marker.read_text().splitlines()),
    }.get(point, lambda: any(one.frozen and "hpc_launch.hook" in one.command for one in processes(f"/{run['run']}")))


def _past(run: dict[str, Any]) -> bool:
    """Whether another attempt has ended: on a busy machine the run may have continued in a new job."""
    return any(Path(run["folder"], "attempts", number, "end.json").exists() for number in ("002", "003"))


def _kill(user: User, run: dict[str, Any], victim: str) -> None:
    if victim == "shell":
        for process in processes(f"/{run['run']}"):
            if "script.sh" in process.command or "slurm_script" in process.command:
                os.kill(process.number, signal.SIGKILL)
        return
    nodes = json.loads(Path(run["folder"], "attempts", "001", "end.json").read_text())["nodes"]
    assert nodes in ("n[1-2]", "n1,n2"), nodes
    user.cluster.kill_node("n1" if victim == "first" else "n2")


def _wrong(status: dict[str, Any], marker: Path) -> list[str]:
    lines = [line.split() for line in marker.read_text().splitlines()]
    starts = Counter((int(line[0]), line[1]) for line in lines if line[2] == "start")
    wrong = [f"attempt {key[0]}: rank {key[1]} trained {count} times" for key, count in starts.items() if count > 1]
    times: dict[int, list[float]] = {}
    for line in lines:
        times.setdefault(int(line[0]), []).append(float(line[3]))
    order = sorted(times)
    for before, after in pairwise(order):
        if max(times[before]) > min(times[after]):
            wrong.append(f"attempt {before} lived {max(times[before]) - min(times[after]):.2f} s into attempt {after}")
    last = [one for one in status["attempts"] if one["state"] != "VOID"][-1]
    trained = {rank for number, rank in starts if number == last["number"]} == {"0", "1"}
    if status["state"] != "COMPLETED" or not trained:
        wrong.append(f"{status['state']}: {status['reason']}; trained {dict(starts)}")
    return wrong


def one(key: str) -> dict[str, Any]:
    """A round on a cluster of its own."""
    number, setting = int(key), setting_of(int(key))
    with Cluster.start(nodes=4, gpus_per_node=0, accounting=setting.accounting, system=setting.slurm) as cluster:
        user = User(cluster, cluster.user_folder(f"killed{number}-"))
        wrong = ["it broke"]
        try:
            wrong, ended, killed = play(user, number)
        finally:
            if wrong:
                keep_remains(user, f"killed-{number}")
    return {"wrong": wrong, "kind": " at ".join(KINDS[number % len(KINDS)]), "ended": ended, "killed": killed}


def prove(rounds: Rounds) -> int:
    """The rounds that are left; 1 if one went wrong."""
    return rounds.run("killed", rounds.numbers("killed", 200), one)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/fault-matrix.md."""
    good, killed = (sum(one[name] for one in rounds.values()) for name in ("ok", "killed"))
    told = counted(word for number in rounds for word in str(setting_of(int(number))).split(", "))
    missed = "" if killed == len(rounds) else f" {len(rounds) - killed} runs had ended before."
    return f"""## Jobs and nodes that are killed during a restart

In each round, a run on two nodes fails once. At one step of the restart inside its job
({", ".join(POINTS)}),
its batch shell, its first node or its second node is killed.{missed} In {good} of {len(rounds)} rounds, no attempt
trained twice, no process of an attempt lived on when the next one had begun, and the run COMPLETED.
The rounds: {told}."""
