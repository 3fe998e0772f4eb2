"""A run of many ranks as its folder shows it. Its samples of GPUs are made up: no GPU was at hand to record them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.status.run_status import RunStatus
from tests.view.samples import attempt, status

BEGIN = 1_700_000_000
SAMPLE_S = 30


def sampled_run(folder: Path, *, nodes: int = 8, gpus: int = 8, steps: int = 10_000, name: str = "big") -> RunStatus:
    """A run of two attempts with `steps` steps of half a second; in the first, the last node is a straggler.

    It saves every tenth of the steps, prints loss and learning rate at each, and the second attempt repeats some.
    """
    run = RunFolder(folder / name)
    half = steps // 2
    parts = ((1, 0, half), (2, half - half // 10, steps))
    begin, states = float(BEGIN), []
    hosts = tuple(f"n{number}" for number in range(nodes))
    for number, first, last in parts:
        one, started = run.attempt(number), begin + 20
        one.logs.mkdir(parents=True)
        one.agent.mkdir()
        plan = {"progress": {"step": r"step (\d+)/(\d+)", "loss": r"loss (\S+)"}, "nodes": nodes, "gpus_per_node": gpus}
        plan |= {"launcher": "torchrun", "phases": True, "processes_per_node": gpus, "job_file": "/home/me/job.yaml"}
        plan |= {"world_size": nodes * gpus, "time_limit_s": 4 * 3600, "sets": ["args.lr=0.001"]}
        one.plan.write_text(json.dumps(plan))
        one.intent.write_text(json.dumps({"time": begin}))
        job = {"job_id": str(number), "restart": 0, "started": started, "nodes": ",".join(hosts)}
        one.claim.write_text(str(number))
        trains = started + 60
        ended = trains + (last - first) / 2
        one.start.write_text(json.dumps({**job, "phase": "training", "ended": started + 5}))
        one.end.write_text(json.dumps({**job, "exit_code": 2 - number, "ended": ended + 10}))
        _log(one.logs / "node-0.log", first, last, steps, ended)
        for node in range(nodes):
            slow = number == 1 and node == nodes - 1
            _watcher(one.agent / f"node-{node}.jsonl", node, gpus, (trains, ended), (first, last, steps), slow=slow)
        states.append(attempt(
            one.path, number=number, job_id=str(number), state="COMPLETED" if number == 2 else "FAILED",
            nodes=hosts, submitted=begin, started=started, ended=ended + 10,
            failure_class=None if number == 2 else "nccl_timeout", verdict="NONE" if number == 2 else "RETRY",
        ))  # fmt: skip
        begin = ended + 60
    run.info.write_text(json.dumps({"run": name, "name": name, "created": BEGIN, "version": "0.1.0"}))
    run.resolved_yaml.write_text(f"job:\n  name: {name}\n  nodes: {nodes}\n  args:\n    lr: 0.001\n")
    return status(run=name, name=name, folder=run.path, state="COMPLETED", attempts=tuple(states))


def _line(step: int, steps: int) -> str:
    rate = 1e-3 * min(1.0, step / (steps / 10)) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
    return f"step {step:05d}/{steps} loss {2 + 8 / (1 + step / 200):.4f} lr {rate:.3e}\n"


def _log(path: Path, first: int, last: int, steps: int, ended: float) -> None:
    path.write_text("".join(_line(step, steps) for step in range(first, last)))
    os.utime(path, (ended, ended))


def _watcher(
    path: Path, node: int, gpus: int, times: tuple[float, float], range_of_steps: tuple[int, int, int], *, slow: bool
) -> None:
    """Events and samples of a node."""
    (trains, ended), (first, last, steps) = times, range_of_steps
    ranks = [str(node * gpus + gpu) for gpu in range(gpus)]
    marks = {"-": "met", **dict.fromkeys(ranks, "done")}
    events = [
        {"t": trains - 50, "event": "start", "node": node, "host": f"n{node}"},
        {"t": trains - 30, "event": "phase", "marks": {"-": "met", **dict.fromkeys(ranks, "torch")}},
        {"t": trains - 10, "event": "phase", "marks": {"-": "met", **dict.fromkeys(ranks, "store")}},
        {"t": trains - 1, "event": "phase", "marks": marks},
    ]
    size = len(_line(first, steps))
    for at in range(int(trains), int(ended), SAMPLE_S // 2):
        done = int((at - trains) * 2)
        if node == 0 and done:
            events.append({"t": at, "event": "output", "size": done * size, "written": at})
        if (at - int(trains)) % SAMPLE_S == 0:
            use = 40 if slow else 92
            wave = [round(use + 5 * math.sin(at / 300 + gpu), 1) for gpu in range(gpus)]
            events.append({
                "t": at, "event": "sample", "rss_mib": dict.fromkeys(ranks, 9000 + node * 10),
                "cpu_s": dict.fromkeys(ranks, round((at - trains) * 1.4, 1)),
                "gpus": [{"index": gpu, "util": wave[gpu], "mem_mib": 61000 + 900 * gpu} for gpu in range(gpus)],
            })  # fmt: skip
    if node == 0:
        tenth = max(1, (last - first) // 5)
        events += [{"t": trains + part * tenth / 2, "event": "saved", "seconds": 4.0} for part in range(1, 5)]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
