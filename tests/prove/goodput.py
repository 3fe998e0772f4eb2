"""The share of productive training under many faults: hpc-launch, `sbatch --requeue` and NVIDIA's ft_launcher.

Each lane is one run on two nodes in an allocation of three. All three methods meet the same faults after the same
times: those of Llama 3 (arXiv 2407.21783, section 3.3.4, 419 unexpected interruptions in 54 days), with the time
between them divided by a scale. The time that a restart takes is not scaled. What counts is the record that the
training writes itself (training/train.py).
"""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.rounds import Rounds
from tests.prove.scene import TRAINING, Line, read_record
from tests.prove.state import PLACE, State
from tests.slurm.user import PROFILES, User

HANG_S = 30
NCCL_S = 600
"""NCCL's default timeout, under a launcher that notices hangs itself."""
REPAIR_S = 120
PAUSE_S = 0.5
SITE = ("AuthInfo=cred_expire=120", "SlurmdTimeout=300")
"""Slurm's defaults."""

BETWEEN_S = 54 * 86400 / 419
KINDS = {"crash": 324, "hang": 49, "node": 46}
"""GPUs, their memory and software end a process; the network and NCCL's watchdog are hangs; the rest, such as the
maintenance of hosts, takes a node away."""


@dataclass(frozen=True)
class Series:
    """Lanes whose faults come at one rate."""

    scale: int
    lanes: int
    faults: int
    """Of a lane."""
    others: int
    """Lanes of the other methods: the first ones."""

    def keys(self, method: str) -> list[str]:
        """The lanes of a method."""
        return [f"{method}-{self.scale}-{lane}" for lane in range(self.lanes if method == OURS else self.others)]

    def plan(self, lane: int) -> list[tuple[str, float]]:
        """The kind of each fault of a lane, and the seconds that the training makes steps before it.

        A Poisson process in a given time, so that all lanes take equally long.
        """
        total, count, kinds = sum(KINDS.values()), self.lanes * self.faults, []
        for kind, share in KINDS.items():
            kinds += [kind] * round(share / total * count)
        kinds = (kinds + ["crash"] * count)[:count]
        random.Random("kinds").shuffle(kinds)
        dice = random.Random(f"lane {lane}")
        gaps = [dice.expovariate(1.0) for _ in range(self.faults)]
        unit = self.faults * BETWEEN_S / self.scale / sum(gaps)
        return [(kinds[lane * self.faults + number], gap * unit) for number, gap in enumerate(gaps)]


OURS = "hpc-launch"
SERIES = (Series(12, lanes=40, faults=5, others=4), Series(75, lanes=8, faults=25, others=8))

SBATCH = """\
#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --cpus-per-task=2 --exclusive --time=12:00:00 --requeue --open-mode=append
#SBATCH --output={home}/batch.log {option}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) WORLD_SIZE=2
"""
REQUEUE = """\
srun --nodes=2 --ntasks=2 --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID exec "$@"' _ {command} ||
    scontrol requeue "$SLURM_JOB_ID"
"""
FT = """\
srun --no-kill --kill-on-bad-exit=0 --wait=0 {python} -m nvidia_resiliency_ext.fault_tolerance.launcher --nnodes=2 \\
    --nproc-per-node=1 --max-restarts=1000 --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \\
    --rdzv-id="$SLURM_JOB_ID.$SLURM_RESTART_COUNT" --ft-rank-heartbeat-timeout={hang} \\
    --ft-initial-rank-heartbeat-timeout=120 {command} || scontrol requeue "$SLURM_JOB_ID"
"""


@dataclass(frozen=True)
class Lane:
    """One run, and where its training writes."""

    user: User
    key: str

    @property
    def record(self) -> list[Line]:
        return read_record(self.user.home / "record")

    @property
    def enough(self) -> Path:
        """What asks the training to end."""
        return self.user.home / "enough"

    def command(self, patience_s: int) -> list[str]:
        """The training, which gives up a rank that says nothing for so long."""
        home = self.user.home
        places = [f"--folder={home / 'saved'}", f"--record={home / 'record'}", f"--stop-file={self.enough}"]
        usual = ["--by-itself", "--listen", "--steps=1000000", "--every=10", f"--pause={PAUSE_S}"]
        return [str(TRAINING), *places, *usual, f"--patience={patience_s}"]


def ours(lane: Lane) -> Callable[[], float]:
    """Submit with hpc-launch; nothing runs beside it. Gives what its own account says in the end."""
    user = lane.user
    text = (PROFILES / "testcluster.yaml").read_text().replace("nodes: 1-4, time: 1:00:00", "nodes: 1-64, time: 1-0")
    user.job(text, "sites/testcluster.yaml")
    program, *words = lane.command(NCCL_S)
    run = user.submit(json.dumps({
        "name": lane.key, "launcher": "srun", "nodes": 2, "processes_per_node": 1, "spares": 1,
        "cpus_per_node": 2, "time": "12:00:00", "script": program, "args": words, "code": "off",
        "sbatch": {"exclusive": True},
        "hang": f"{HANG_S}s", "retry": {"max_attempts": 1000, "backoff": "1s", "on": {"segfault_or_abort": "RETRY"}},
        "progress": {"step": r"step (\d+)"},
        "checkpoint": {"dir": str(user.home / "saved"), "pattern": r"step-(\d+)"},
    }))  # fmt: skip

    def account() -> float:
        seconds = user.until(run["run"], "COMPLETED", "FAILED", "STOPPED")["time"]
        return float(seconds["training"] / (sum(seconds.values()) - seconds["queued"]))

    return account


def requeue(lane: Lane) -> None:
    """Submit a script that has Slurm requeue its job."""
    _sbatch(lane, "", REQUEUE.format(command=shlex.join([sys.executable, *lane.command(HANG_S)])))


def ft_launcher(lane: Lane) -> None:
    """Submit a script that starts ft_launcher on three nodes for a training on two, and requeues the job."""
    _sbatch(lane, "--no-kill", FT.format(python=ft_python(), command=shlex.join(lane.command(NCCL_S)), hang=HANG_S))


def _sbatch(lane: Lane, option: str, body: str) -> None:
    script = lane.user.job(SBATCH.format(home=lane.user.home, option=option) + body, f"{lane.key}.sh")
    lane.user.cluster.run(["sbatch", script], cwd=lane.user.home, check=True)


METHODS: dict[str, Callable[[Lane], Callable[[], float] | None]] = {
    OURS: ours,
    "requeue": requeue,
    "ft_launcher": ft_launcher,
}


def ft_python() -> Path:
    """The interpreter of an environment with nvidia-resiliency-ext, which uses the PyTorch of this one."""
    place = PLACE / "ft_launcher"
    python = place / "bin" / "python"
    if not (place / "done").exists():
        venv.create(place, with_pip=True, clear=True)
        site = next(path for path in sys.path if path.endswith("site-packages"))
        (next(place.glob("lib/python3*/site-packages")) / "torch.pth").write_text(f"{site}\n")
        wanted = ["nvidia-resiliency-ext", "defusedxml", "nvidia-ml-py", "pynvml"]
        subprocess.run([python, "-m", "pip", "install", "--no-deps", *wanted], check=True)
        (place / "done").touch()
    return python


def play(lane: Lane, method: str, faults: list[tuple[str, float]]) -> dict[str, Any]:
    """Run a lane through faults; what its record says."""
    account = METHODS[method](lane)
    planted: list[tuple[str, float]] = []
    for kind, after_s in faults:
        began = _trains(lane, planted[-1][1] if planted else 0.0)
        time.sleep(max(0.0, began + after_s - time.time()))
        # Slurm may just be moving the job: it ends the jobs of a node that comes back.
        wait_until(lambda: _busy(lane, 2), 1500, lambda: f"no steps: {lane.user.cluster.jobs()}", every=0.5)
        planted.append((kind, time.time()))
        _plant(lane, kind)
    _trains(lane, planted[-1][1])
    time.sleep(10)
    last = len(lane.record)
    lane.user.cluster.run(["touch", str(lane.enough)], check=True)
    wait_until(lambda: len(lane.record) > last and not _busy(lane), 600, lambda: f"{lane.user.cluster.jobs()}")
    told = measure(lane.record, planted)
    return {**told, "account": round(account(), 4)} if account is not None else told


def _busy(lane: Lane, within_s: float = 20 * PAUSE_S) -> bool:
    return lane.record[-1].time > time.time() - within_s


def _trains(lane: Lane, after: float) -> float:
    """Wait until the training goes on after a fault; when it made its first new step."""
    wait_until(
        lambda: resumed(lane.record, after) is not None,
        1500,
        lambda: f"no new step: {lane.user.cluster.jobs()}",
        every=0.5,
    )
    found = resumed(lane.record, after)
    assert found is not None
    return found[1]


def resumed(record: list[Line], after: float) -> tuple[float, float] | None:
    """The last step before the first rank was started again, and the first step then that was not made before."""
    start = next((one.time for one in record if one.what == "start" and one.words[0] == "0" and one.time > after), None)
    if start is None:
        return None
    steps = [(one.time, int(one.words[0])) for one in record if one.what == "step"]
    before = [(at, step) for at, step in steps if at < start] or [(start, 0)]
    reached = max(step for _, step in before)
    return next(((before[-1][0], at) for at, step in steps if at > start and step > reached), None)


def _plant(lane: Lane, kind: str) -> None:
    """Let the second rank crash or hang, or its node lose power for a while."""
    start = [one for one in lane.record if one.what == "start" and one.words[0] == "1"][-1]
    _, node, process = start.words
    cluster = lane.user.cluster
    if kind == "node":
        cluster.kill_node(node)
        threading.Timer(REPAIR_S, cluster.revive_node, [node]).start()
        return
    cluster.node_exec(node, ["kill", "-SEGV" if kind == "crash" else "-USR2", process])


def measure(record: list[Line], planted: list[tuple[str, float]]) -> dict[str, Any]:
    """The productive share, and the seconds that each fault cost: from the last step to the first new one."""
    productive, reached, before = 0.0, 0, None
    for one in record:
        if one.what != "step":
            before = None if one.words[0] == "0" else before
            continue
        step = int(one.words[0])
        if step > reached and before is not None:
            productive += one.time - before
        reached, before = max(reached, step), one.time
    lost: dict[str, list[float]] = {}
    for kind, at in planted:
        found = resumed(record, at)
        assert found is not None, f"the training did not go on after the fault at {at}"
        lost.setdefault(kind, []).append(round(found[1] - found[0] - PAUSE_S, 1))
    wall = record[-1].time - record[0].time
    return {"productive_s": round(productive, 1), "wall_s": round(wall, 1), "lost_s": lost}


def prove(rounds: Rounds) -> int:
    """The lanes that are not done: all, those of a method, `METHOD-SCALE`, or `METHOD-SCALE-LANE`.

    Each method has a cluster. The count is that of the faults of each lane, where it is less than usual.
    """
    done, failed, count, names = rounds.done("goodput"), 0, rounds.count, rounds.names
    for series in SERIES:
        faults = min(series.faults, count or series.faults)
        for method in METHODS:
            keys = series.keys(method)
            wanted = [key for key in keys if not names or {method, f"{method}-{series.scale}", key} & set(names)]
            left = [key for key in wanted if len(done.get(key, {}).get("faults", [])) < faults]
            if not left:
                continue
            if method == "ft_launcher":
                ft_python()
            with (
                Cluster.start(nodes=3 * len(left) + 3, gpus_per_node=0, slurm_conf=SITE) as cluster,
                ThreadPoolExecutor(len(left)) as pool,
            ):
                cluster.run(["scontrol", "update", "partitionname=gpu", "maxtime=1-0"], user="root", check=True)
                failed += sum(pool.map(partial(_lane, rounds.state, cluster, series, method, faults), left))
    return 1 if failed else 0


def _lane(state: State, cluster: Cluster, series: Series, method: str, count: int, key: str) -> bool:  # noqa: PLR0917
    """One lane; whether it failed."""
    faults = series.plan(int(key.rpartition("-")[2]))[:count]
    try:
        found = play(Lane(User(cluster, cluster.user_folder(f"{key}-")), key), method, faults)
    except Exception as error:  # a lane that breaks says nothing
        print(f"{key}: {type(error).__name__}: {error}", flush=True)
        return True
    state.keep("goodput", key, {**found, "faults": [kind for kind, _ in faults]})
    print(f"{key}: {found['productive_s'] / found['wall_s']:.1%} {found}", flush=True)
    return False


def section(lanes: dict[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""
    text = ["| one fault in | method | faults | productive | lost per fault | crash | hang | node lost |"]
    text.append("|---" * 8 + "|")
    unscaled: dict[str, float] = {}
    for series in SERIES:
        rows = {method: series.keys(method) for method in METHODS}
        if series.others < series.lanes:
            rows = {
                OURS: rows[OURS],
                f"{OURS}, {series.others} of the {series.lanes} lanes": rows[OURS][: series.others],
                **rows,
            }
        for method, keys in rows.items():
            found = [lanes[key] for key in keys if key in lanes]
            if not found:
                continue
            productive, wall = (sum(one[name] for one in found) for name in ("productive_s", "wall_s"))
            lost = {kind: [s for one in found for s in one["lost_s"].get(kind, [])] for kind in KINDS}
            every = [seconds for times in lost.values() for seconds in times]
            kinds = " | ".join(f"{mean(times):.0f} s" if times else "none" for times in lost.values())
            row = f"{method} | {len(every)} | {productive / wall:.1%} | {mean(every):.0f} s | {kinds} |"
            text.append(f"| {BETWEEN_S / series.scale / 60:.1f} min | {row}")
            if method in METHODS:
                unscaled.setdefault(method, 1 - (wall - productive) / len(every) / BETWEEN_S)
    text.append(f"\nAt one in 3.1 hours, this would be {', '.join(f'{a} {b:.2%}' for a, b in unscaled.items())}.")
    told = [one for one in lanes.values() if "account" in one]
    if told:
        apart = max(abs(one["account"] - one["productive_s"] / one["wall_s"]) for one in told)
        text.append(f"hpc-launch's own account leaves out the time in the queue. It differs by at most {apart:.1%}.")
    return "\n".join(text)
