"""Whether the next attempt can be the last one's job, put back into the queue with changes, and with which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpc_launch.base.files import read_json, read_text
from hpc_launch.retry.decision import RetryContext
from hpc_launch.run.records import values
from hpc_launch.run.records.verdict_record import VerdictRecord
from hpc_launch.run.status.run_status import Prepared
from hpc_launch.run.submitting.in_place import Again
from hpc_launch.schedulers.scheduler import HeldJobChange

_CHANGEABLE = re.compile(r"#SBATCH --(mem|time|partition)=|time_limit=\d+$")
"""The lines of a script that may differ: Slurm starts the script that it has, and is told of these."""

_EXCLUDE = "--exclude="


def again_for(found: RetryContext, verdict: VerdictRecord, prepared: Prepared) -> Again | None:
    """The job to put back for the attempt that a verdict asks for; None where only a new one will do."""
    case, plan = found.case, found.plan
    if not (found.slurm and plan.in_place) or verdict.withdrawn or case.files.void is not None:
        return None
    name = values.text(case.files.intent.get("job_name")) if case.files.intent else None
    if case.job_id is None or name is None or not case.job_id.isdecimal():
        return None
    if case.live is not None and case.live.state == "COMPLETING":
        return None  # Slurm itself is ending it: the time limit, or a preemption
    changed = changed_lines(_old(found), prepared.script)
    if changed is None:
        return None
    change = _change(changed, prepared, found)
    return None if change is None else Again(case.job_id, name, case.files.restart, change)


def _old(found: RetryContext) -> str:
    """The script that Slurm has of the job: that of the attempt for which it was submitted."""
    for attempt in reversed(found.run.attempts()):
        intent = read_json(attempt.intent)
        if intent is not None and "in_place" not in intent and attempt.script.is_file():
            return read_text(attempt.script, errors="surrogateescape")
    return ""


def changed_lines(old: str, new: str) -> frozenset[str] | None:
    """Which of memory, time and partition differ; None where other lines do too."""
    before, after = old.splitlines(), new.splitlines()
    if len(before) != len(after):
        return None
    kinds = set()
    for one, other in zip(before, after, strict=True):
        if one == other:
            continue
        match, its = _CHANGEABLE.match(one), _CHANGEABLE.match(other)
        if match is None or its is None or match[1] != its[1]:
            return None
        kinds.add(match[1] or "time")
    return frozenset(kinds)


def _change(kinds: frozenset[str], prepared: Prepared, found: RetryContext) -> HeldJobChange | None:
    recovery: Mapping[str, Any] = prepared.plan.get("recovery") or {}
    memory, time_s = values.whole(recovery.get("memory")), values.whole(recovery.get("time_s"))
    partition = values.text(recovery.get("partition"))
    if ("mem" in kinds and not memory) or ("time" in kinds and not time_s) or ("partition" in kinds and not partition):
        return None
    nodes = next((option[len(_EXCLUDE) :] for option in prepared.options if option.startswith(_EXCLUDE)), None)
    options = (found.case.files.intent or {}).get("options")
    if nodes is None and any(str(option).startswith(_EXCLUDE) for option in options or ()):
        return None  # an empty list changes nothing, and no word of Slurm's says so
    delay = float(next((match[1] for match in map(_begin, prepared.options) if match), 0))
    return HeldJobChange(
        exclude=tuple(nodes.split(",")) if nodes else None,
        memory=memory if memory and "mem" in kinds else None,
        time_s=time_s if "time" in kinds else None,
        partition=partition if "partition" in kinds else None,
        delay_s=delay,
    )


def _begin(option: str) -> re.Match[str] | None:
    return re.fullmatch(r"--begin=now\+(\d+)", option)
