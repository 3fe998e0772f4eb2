"""A job that goes back into Slurm's queue under its own id, with changes, by its owner's hand.

`scontrol requeuehold`, `update`, `release` work for an ordinary user on a running job and on one that is over and still
remembered, where it has Requeue=1 (seen with 22.05, 24.11 and 26.05). A job that is over with Requeue=0 stays over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, Unreachable
from hpc_launch.schedulers.scheduler import HeldJobChange
from hpc_launch.schedulers.slurm import parse_cluster, run_command
from hpc_launch.schedulers.slurm.parse_values import number
from hpc_launch.schedulers.slurm.sbatch_errors import no_answer
from hpc_launch.spec.units import parse_time

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_NEAR = 0.02
"""Slurm rounds a memory when it shows it: 1536M reads 1.50G."""


def put_back(job_id: str, change: HeldJobChange) -> int | str:
    """A job that could be held and not changed is cancelled: it must not start unchanged."""
    before = _shown(job_id)
    if before is None:
        return f"Slurm has forgotten job {job_id}"
    refused = None
    if before.get("Requeue") == "0":
        refused = _refused("update", f"JobId={job_id}", "Requeue=1")
    refused = refused or _refused("requeuehold", job_id)
    if refused is not None:
        return refused
    try:
        wrong = _changed(job_id, change)
    except SchedulerError as error:
        wrong = str(error)
    if isinstance(wrong, int):
        return wrong
    answer = run_command.run(["scancel", job_id])
    if answer.code != 0:
        raise Unreachable(f"job {job_id} is held, could not be changed ({wrong}) nor cancelled: {answer.last_line}")
    return f"{wrong}; job {job_id} was taken out of the queue"


def release(job_id: str) -> None:
    """See schedulers/scheduler.py."""
    refused = _refused("release", job_id)
    if refused is not None:
        raise Unreachable(f"job {job_id} cannot be released: {refused}")


def preempted(job_id: str) -> bool:
    """While a job is ending, `squeue` and `scontrol` call it COMPLETING; sacct has the word."""
    with suppress(Unreachable):
        said = run_command.ask(
            ["sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job_id}"]
        )
        states = [line.split()[0] for line in said.splitlines() if line.strip()]
        if states and states[-1] not in ("RUNNING", "COMPLETING", "PENDING"):
            return states[-1] == "PREEMPTED"
    with suppress(Unreachable):
        row = _shown(job_id)
        # A cancelled job, and one at its time limit, has no such time.
        return row is not None and row.get("PreemptTime", "None") not in ("None", "Unknown", "N/A")
    return False


def _changed(job_id: str, change: HeldJobChange) -> int | str:
    """Make the changes and read each back: some releases take a value without a word and leave it."""
    words = [f"{key}={value}" for key, value in _fields(change).items()]
    # From now on it is not Slurm's to start it again.
    for word in ("Requeue=0", *words):
        refused = _refused("update", f"JobId={job_id}", word)
        if refused is not None:
            return f"{word}: {refused}"
    row = _shown(job_id)
    restarts = number(row.get("Restarts")) if row is not None else None
    if row is None or restarts is None:
        return "Slurm does not show the job any more"
    left = [word for word in ("Requeue=0", *words) if not _stands(row, word)]
    return f"Slurm did not take {', '.join(left)}" if left else restarts


def _fields(change: HeldJobChange) -> dict[str, str]:
    fields: dict[str, str] = {}
    if change.exclude is not None:
        fields["ExcNodeList"] = ",".join(change.exclude)
    if change.memory is not None:
        fields["MinMemoryNode"] = str(change.memory)
    if change.time_s is not None:
        fields["TimeLimit"] = str(math.ceil(change.time_s / 60))
    if change.partition is not None:
        fields["Partition"] = change.partition
    # Without it the job waits until its old credential has expired: two minutes by Slurm's default.
    fields["StartTime"] = f"now+{math.ceil(change.delay_s)}" if change.delay_s > 0 else "now"
    return fields


def _stands(row: Mapping[str, str], word: str) -> bool:
    key, _, wanted = word.partition("=")
    shown = row.get(key, "")
    if key == "StartTime":
        return True  # a time, and it only delays
    if key == "ExcNodeList":
        return _hosts(shown) == _hosts(wanted)
    if key == "MinMemoryNode":
        unit = _UNITS.get(shown[-1:], 0)
        return unit > 0 and abs(float(shown[:-1]) * unit - int(wanted)) <= _NEAR * int(wanted)
    if key == "TimeLimit":
        return parse_time(shown) == int(wanted) * 60
    return shown == wanted


def _hosts(names: str) -> frozenset[str]:
    if names in ("", "(null)"):
        return frozenset()
    return frozenset(run_command.ask(["scontrol", "show", "hostnames", names]).split())


def _shown(job_id: str) -> dict[str, str] | None:
    answer = run_command.run(["scontrol", "--oneliner", "show", "job", job_id])
    if answer.code != 0:
        if no_answer(answer.last_line):
            raise Unreachable(f"scontrol: {answer.last_line}")
        return None
    return next(parse_cluster.records(answer.output), None)


def _refused(*words: str) -> str | None:
    """Why scontrol did not do it, or None. Raises Unreachable where it may have."""
    answer = run_command.run(["scontrol", *words])
    if answer.code == 0:
        return None
    if no_answer(answer.last_line):
        raise Unreachable(f"scontrol {words[0]}: {answer.last_line}")
    return answer.last_line
