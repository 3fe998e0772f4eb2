"""A job that runs a text of Python once on some nodes, and what tells that its processes run."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.cluster.faults import wait_until
from tests.slurm.user import User

SLEEPS = """\
import os, time
open(os.environ["HPC_LAUNCH_ATTEMPT_DIR"] + "/began-" + os.environ["RANK"], "w").close()
stop = os.environ["HPC_LAUNCH_STOP_FILE"]
for _ in range(3000):
    time.sleep(0.1)
    if os.path.exists(stop):
        print("rank", os.environ["RANK"], "was warned", flush=True)
        break
"""
"""A program that writes a file as it begins, and goes on until it is told to stop."""


def job_of(user: User, program: str, launcher: object, *, nodes: int = 2, **keys: object) -> str:
    """A job that runs a text of Python once, whether it fails or not."""
    script = user.cluster.write(user.home / "a program.py", program)
    wanted = {"name": "program", "nodes": nodes, "launcher": launcher, "script": str(script)}
    return user.job(yaml.safe_dump({**wanted, "retry": {"max_attempts": 1}, **keys}, allow_unicode=True))


def wait_for_ranks(user: User, ranks: int) -> list[Path]:
    """The files of that many processes, as soon as all have begun."""

    def begun() -> list[Path]:
        return sorted(user.home.glob("runs/*/attempts/001/began-*"))

    wait_until(lambda: len(begun()) >= ranks, explain=lambda: user.launch("logs", "@last").stdout, every=0.5)
    return begun()
