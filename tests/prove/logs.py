"""Labelled logs, as they are and as other machines would have written them: what of their diagnosis is right.

    python -m tests.prove logs FOLDER...        each with labels.yaml and NNN.log

Each label has an id, a class, a verdict, and where they are known the rank and the node that failed first. A fixed hash
of the name splits the logs: rules may be written from the open half only, the closed half measures them.
"""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from hpc_launch.service.diagnose import diagnose_logs
from tests.prove.rounds import Rounds

VERDICTS = {
    "retry_same": {"RETRY", "CONTINUE"},
    "retry_other_node": {"RETRY_ELSEWHERE"},
    "retry_with_change": {"RETRY_CHANGED"},
    "stop": {"STOP"},
    "none": {"NONE"},
}
_FOLDERS = {
    "/home/": "/lustre/orion/xyz123/",
    "/scratch/": "/gpfs/work3/0/prj/",
    "/opt/conda/": "/appl/sw/25.03/",
    "site-packages": "dist-packages",
    "python3.10": "python3.12",
    "python3.9": "python3.13",
    "python3.8": "python3.11",
}


def _elsewhere(lines: list[str]) -> list[str]:
    """Other folders, and another Python."""
    for old, new in _FOLDERS.items():
        lines = [line.replace(old, new) for line in lines]
    return lines


def _versions(lines: list[str]) -> list[str]:
    """Another release of the libraries: their frames have other line numbers."""
    frame = re.compile(r"(File \"[^\"]*(?:site|dist)-packages[^\"]*\", line )(\d+)")
    source = re.compile(r"(\w+\.(?:cpp|cc|cu|h|hpp|py):)(\d+)")
    moved = [frame.sub(lambda found: f"{found[1]}{int(found[2]) + 17}", line) for line in lines]
    return [source.sub(lambda found: f"{found[1]}{int(found[2]) + 17}", line) for line in moved]


def _prefix(form: str) -> Callable[[list[str]], list[str]]:
    """Each line with the prefix of a launcher or of a logger."""
    return lambda lines: [form + line for line in lines]


def _fewer(lines: list[str]) -> list[str]:
    """Without a part of the lines that say nothing of failure, as where a log was cut by a filter or a full disk."""
    kept = re.compile(
        r"error|fail|kill|abort|exception|warn|cancel|signal|\bfile \"|slurm|nccl|step|rank|line \d", re.IGNORECASE
    )
    return [line for number, line in enumerate(lines) if number % 3 or kept.search(line) or not line.strip()]


MUTATIONS: dict[str, Callable[[list[str]], list[str]]] = {
    "as it is": lambda lines: lines,
    "other folders": _elsewhere,
    "other releases": _versions,
    "srun's label": _prefix("03: "),
    "torchrun's label": _prefix("[default3]:"),
    "a logger's time": _prefix("2026-11-02 13:44:05,123 INFO "),
    "fewer lines": _fewer,
    "carriage returns": lambda lines: [line + "\r" for line in lines],
}


def is_open(name: str) -> bool:
    """Whether rules may be written from a log of this name."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


def judge(label: dict[str, Any], lines: list[str]) -> dict[str, bool]:
    """What is right of the diagnosis of these lines; `place` only where a label names one."""
    with tempfile.NamedTemporaryFile("w", suffix=".log", errors="surrogateescape") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        found, verdict = diagnose_logs([file.name], io.BytesIO())
    wanted = {"NONE"} if label["class"] == "success" else VERDICTS[label["verdict"]]
    right = {"class": found.failure_class == label["class"], "verdict": verdict.action in wanted}
    rank, node = label.get("first_failing_rank"), label.get("first_failing_node")
    if rank is not None or node:
        first = found.first_failure
        right["place"] = (rank is not None and first.rank == rank) or (bool(node) and first.node == node)
    return right


def prove(rounds: Rounds) -> int:
    """Both halves of each folder, as the logs are and changed; 1 where the closed half as it is misses its goal."""
    good: Counter[tuple[str, str, str]] = Counter()
    count: Counter[tuple[str, str, str]] = Counter()
    for folder in map(Path, rounds.names):
        for label in yaml.safe_load((folder / "labels.yaml").read_text()):
            file = folder / f"{label['id']}.log"
            half = "open" if is_open(file.name) else "closed"
            lines = file.read_text(errors="surrogateescape").splitlines()
            for name, change in MUTATIONS.items():
                right = judge(label, change(lines))
                for what, holds in right.items():
                    count[name, half, what] += 1
                    good[name, half, what] += holds
                if half == "open" and not all(right.values()):
                    print(f"{file.name} {name}: {', '.join(what for what, holds in right.items() if not holds)}")
    for key in sorted(count, key=lambda one: (list(MUTATIONS).index(one[0]), one[1:])):
        print(f"{key[0]:18} {key[1]:6} {key[2]:8} {good[key]:3} of {count[key]:3}  {good[key] / count[key]:.0%}")
    goals = {"class": 0.93, "verdict": 0.95, "place": 0.92}
    return int(
        any(good["as it is", "closed", what] < goal * count["as it is", "closed", what] for what, goal in goals.items())
    )
