"""From a fault to the first new step, inside the same job or in the run's next one, in many rounds of different kinds.

A round is one run of the small training. Its number decides on the launcher, the Slurm, an image or none, accounting
or none, one node or two. The times are those that the training wrote itself.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, replace
from typing import Any

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.image import build_sif
from tests.prove.rounds import Rounds, counted
from tests.prove.row import Row, fails
from tests.prove.rows_nodes import kill_node
from tests.prove.rows_storage import into_image
from tests.prove.scene import Scene
from tests.slurm.user import User

ROUNDS = 20
HANG_S = 12
LAUNCHERS = ("torchrun", "srun", "deepspeed")
SLURMS = (None, "trixie", "sid")


@dataclass(frozen=True)
class Event:
    """A fault, and how soon the run must train again."""

    name: str
    goal_s: float
    verdict: str
    row: Row
    slurm_conf: tuple[str, ...] = ()
    """Of the cluster, where a node dies; what the training itself loads counts then."""
    by_successor: bool = False
    """Whether the run's next job trains, from whose view the fault happens when Slurm notices it."""


def fill(scene: Scene) -> None:
    """Let somebody else have what the run does not need."""
    _occupy(scene, "--nodelist=n4")


def cut_power(scene: Scene) -> None:
    """The second node dies while somebody else waits for one."""
    _occupy(scene)
    scene.happens()
    kill_node(scene)


def _occupy(scene: Scene, *options: str) -> None:
    words = ["sbatch", *options, "--exclusive", "--time=30", "--output=/dev/null", "--wrap=sleep 1800"]
    scene.cluster.run(words, user="bob", check=True)


QUICK: dict[str, Any] = {"time": "00:20:00", "hang": {"after": "5m"}}
SLOW = {"pause": 0.5}
EVENTS = {
    "crash": Event(
        "a rank crashes (verdict RETRY)",
        15,
        "RETRY",
        Row("crash", "", (), (), job=QUICK, args=fails("segv", rank=1)),
    ),
    "hang": Event(
        f"a rank hangs; the hang limit is {HANG_S} s",
        HANG_S + 15,
        "RETRY",
        Row("hang", "", (), (), job={**QUICK, "hang": f"{HANG_S}s"}, args=fails("hang", rank=1)),
    ),
    "power": Event(
        "a node other than the first loses power; one spare, `SlurmdTimeout=300`, no other node free",
        60,
        "RETRY_ELSEWHERE",
        Row("power", "", (), (), job={**QUICK, "spares": 1}, args=SLOW, before=fill, act=cut_power, at=8, node=1),
        slurm_conf=("SlurmdTimeout=300",),
    ),
    "successor": Event(
        "the first node loses power; no client is running, other nodes are idle; from when Slurm notices it",
        90,
        "RETRY_ELSEWHERE",
        Row(
            "successor", "", (), (), job={**QUICK, "retry": {"successor": "on"}}, args=SLOW, act=kill_node, at=8, node=0
        ),
        slurm_conf=("SlurmdTimeout=20",),
        by_successor=True,
    ),
}


@dataclass(frozen=True)
class Kind:
    """What a round runs on."""

    launcher: str
    slurm: str | None
    image: bool
    accounting: bool
    nodes: int

    def __str__(self) -> str:
        """As in the table."""
        words = [self.launcher, f"Slurm of {self.slurm or 'bookworm'}", "Apptainer" if self.image else "bare"]
        words += ["accounting" if self.accounting else "no accounting", "two nodes" if self.nodes > 1 else "one node"]
        return ", ".join(words)


def kind_of(key: str) -> Kind:
    """The kind of a round: each launcher on each Slurm within nine rounds, half of those on sid in an image."""
    event, number = key.rpartition("-")[0], int(key.rpartition("-")[2])
    dice = random.Random(f"{event} {number}")
    slurm = SLURMS[number // 3 % 3]
    image = slurm == "sid" and number // 9 % 2 == 0
    nodes = 2 if EVENTS[event].row.act is cut_power else dice.choice((1, 2))
    return Kind(LAUNCHERS[number % 3], slurm, image, dice.random() < 0.5, nodes)


def play(cluster: Cluster, event: Event, kind: Kind) -> dict[str, Any]:
    """One round: what it took, and what is wrong."""
    scene = Scene(event.row.fresh(), User(cluster, cluster.user_folder(f"{event.row.key}-")))
    scene.row.job.update(launcher=kind.launcher, nodes=kind.nodes, processes_per_node=2 // kind.nodes)
    if kind.image:
        into_image(scene, build_sif(cluster, cluster.scratch / "small.sif"))
    scene.row.before(scene)
    done = scene.submit()
    assert done.returncode == 0, done.stderr
    scene.act()
    wait_until(lambda: scene.reached(1, attempt=2), 60 + 4 * event.goal_s, scene.told, every=0.3)
    return _outcome(scene, scene.finish(None, 120), event)


def _outcome(scene: Scene, status: dict[str, Any], event: Event) -> dict[str, Any]:
    record = scene.record()

    def first(what: str, attempt: int) -> float:
        return min(line.time for line in record if line.what == what and line.attempt == attempt)

    attempts = status["attempts"]
    planted = attempts[0]["ended"] if event.by_successor else scene.planted or first("fault", 1)
    loads = min(first("step", number) - _launched(scene, number) for number in (1, 2))
    whole = first("step", 2) - planted
    took = whole - (0 if event.slurm_conf else loads)
    wrong = [f"{took:.1f} s"] if took > event.goal_s else []
    if status["state"] != "COMPLETED" or len(attempts) != 2:
        wrong.append(f"{status['state']}, {len(attempts)} attempts: {status['reason']}")
    if [one["job_id"] for one in attempts] != [scene.run["job_id"], _next_job(scene, event)]:
        wrong.append("another job")
    if attempts[0]["verdict"] != event.verdict:
        wrong.append(f"{attempts[0]['class']}, {attempts[0]['verdict']} for {event.verdict}")
    seconds = {"took_s": took, "loads_s": loads, "whole_s": whole}
    return {"wrong": wrong, **{name: round(value, 2) for name, value in seconds.items()}}


def _next_job(scene: Scene, event: Event) -> str:
    """The job that the second attempt is to run in."""
    record = scene.run_folder / "attempts" / "001" / "successor.json"
    return str(json.loads(record.read_text())["job_id"] if event.by_successor else scene.run["job_id"])


def _launched(scene: Scene, attempt: int) -> float:
    """When the launcher of an attempt began, which loads its libraries before the training does."""
    agents = (scene.run_folder / "attempts" / f"{attempt:03d}" / "agent").glob("node-*.jsonl")
    return float(min(json.loads(path.read_text().partition("\n")[0])["t"] for path in agents))


def one(key: str) -> dict[str, Any]:
    """A round on a cluster of its own."""
    event, kind = EVENTS[key.rpartition("-")[0]], kind_of(key)
    with Cluster.start(
        nodes=4, gpus_per_node=0, accounting=kind.accounting, system=kind.slurm, slurm_conf=event.slurm_conf
    ) as cluster:
        outcome = play(cluster, event, kind)
    return {**outcome, "kind": str(kind), "load": round(os.getloadavg()[1] / (os.cpu_count() or 1), 1)}


def prove(rounds: Rounds) -> int:
    """The rounds of the events that are named, or of all, that have not succeeded yet; 1 if one goes wrong."""
    count = ROUNDS if rounds.count is None else rounds.count
    keys = [f"{event}-{number}" for event in rounds.names or EVENTS for number in range(count)]
    return rounds.run("inside", replace(rounds, names=[]).left("inside", keys), one)


def section(rounds: dict[str, Any]) -> str:
    """The part of docs/evidence/measured.md."""
    text = [
        "| event | goal | rounds | within the goal | median | longest | longest, with loading |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, event in EVENTS.items():
        found = [one for key, one in rounds.items() if key.rpartition("-")[0] == name]
        times = sorted(one["took_s"] for one in found if "took_s" in one)
        if times:
            good = sum(one["ok"] for one in found)
            whole = max(one["whole_s"] for one in found if "whole_s" in one)
            figures = f"{times[len(times) // 2]:.1f} s | {times[-1]:.1f} s | {whole:.1f} s"
            text.append(f"| {event.name} | {event.goal_s:g} s | {len(found)} | {good} | {figures} |")
    kinds = counted(word for one in rounds.values() for word in one.get("kind", "").split(", ") if word)
    text.append(f"\nOf these {len(rounds)} rounds: {kinds}.")
    loads = sorted(one["load"] for one in rounds.values() if "load" in one)
    if loads:
        text[-1] += f" Processes that ran or waited for each CPU of the machine: {loads[0]:g} to {loads[-1]:g}."
    return "\n".join(text)
