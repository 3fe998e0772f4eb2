"""`doctor` without Slurm: whether ssh reaches the hosts of a job, from here and from the first one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import to_builtins

from hpc_launch.base.errors import SubmitRefused, UsageError
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.preflight.level import Level
from hpc_launch.schedulers.ssh.on_first_host import host_problems


@contextmanager
def job_for_hosts(count: int, folder: Path) -> Iterator[Path]:
    """A job file that only lets the hosts be checked, in the folder that their relative paths refer to.

    Raises UsageError if it cannot be written.
    """
    job = {"name": "doctor", "nodes": count, "launcher": "none", "command": ["true"], "code": "off"}
    try:
        number, name = tempfile.mkstemp(prefix=".hpc-launch-doctor-", suffix=".yaml", dir=folder)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}", "change to another folder") from error
    try:
        with open(number, "w", encoding="utf-8") as file:
            json.dump(job, file)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def hosts_level(plan: LaunchPlan) -> Level:
    """Each host that cannot be reached from the first one, with the missing step."""
    names = [host.name for host in (*plan.hosts, *plan.spare_hosts)]
    try:
        problems = host_problems(names)
    except SubmitRefused as error:
        return Level("hosts", "failed", (str(error),))
    several = "host" if len(names) == 1 else "hosts"
    lines = [] if problems else [f"{names[0]} reaches {len(names)} {several} over ssh"]
    for one in problems:
        lines += [one.message, *([f"hint: {one.hint}"] if one.hint else [])]
    values = {"problems": [to_builtins(one) for one in problems]}
    return Level("hosts", "failed" if problems else "ok", tuple(lines), values=values)
