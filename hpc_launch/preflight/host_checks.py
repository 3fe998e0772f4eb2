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
from hpc_launch.schedulers.ssh.check_hosts import host_problems, problems_between

BY_THE_FIRST = 32
"""With more hosts, the first one does not start all of them (agent/fan_out.py)."""


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
    """Each host that cannot be reached, with the missing step. Only large jobs need ssh between the other hosts."""
    names = [host.name for host in (*plan.hosts, *plan.spare_hosts)]
    try:
        problems = host_problems(names)
        between = problems_between(names) if not problems else []
    except SubmitRefused as error:
        return Level("hosts", "failed", (str(error),))
    failed = problems or (between if len(names) > BY_THE_FIRST else [])
    several = "host" if len(names) == 1 else "hosts"
    lines = [] if problems else [f"{names[0]} reaches {len(names)} {several} over ssh"]
    for one in (*problems, *between):
        lines.append(one.message if failed else f"warning: {one.message}")
        lines += [f"hint: {one.hint}"] if one.hint else []
    values = {"problems": [to_builtins(one) for one in (*problems, *between)]}
    return Level("hosts", "failed" if failed else "ok", tuple(lines), values=values)
