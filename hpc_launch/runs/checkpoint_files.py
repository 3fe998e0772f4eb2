"""Find the newest complete checkpoint of a run, as its job does (agent/checkpoints.py)."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from hpc_launch.agent.checkpoints import (
    CheckpointFound,
    CheckpointRule,
    entries,
    modified,
    newest_complete,
    newest_first,
    printable,
    why_incomplete,
)
from hpc_launch.base.patterns import compiled
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import newest_plan

TENSOR_FILES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npz"})
"""Endings of files with tensors."""
MOST_LOOKED_AT = 50
"""So many entries of a folder are looked at to find files with tensors."""


def newest_checkpoint(run: RunFolder) -> CheckpointFound | None:
    """The newest complete checkpoint; None where there is none, or the job file does not say where they are."""
    rule = rule_of(run)
    return None if rule is None else newest_complete(rule)


def rule_of(run: RunFolder) -> CheckpointRule | None:
    """The rule of the run's newest plan; None where it has no valid one. Never raises.

    None for another user's run, too, which may name any folder of this user or a very large one.
    """
    if run.is_foreign:
        return None
    plan = newest_plan(run)
    record = plan.checkpoint if plan is not None else None
    if record is None or not record.dir:
        return None
    try:
        pattern = compiled(record.pattern)
    except re.error:
        return None
    return CheckpointRule(Path(record.folder(str(run.path))), pattern, record.complete, record.latest)


def near_miss(run: RunFolder, since: float = 0.0, until: float = math.inf) -> str | None:
    """Why there is no complete checkpoint by the job's rule, where there are files that look like one; None otherwise.

    For example, a pattern for `step-10` misses `step-10.pt`. Names ending in `.tmp` are being written and ignored, and
    so is what was last written before `since` or after `until` (seconds since the epoch).
    """
    rule = rule_of(run)
    if rule is None:
        return None
    named = newest_first(rule)
    if named:
        newest = named[0]
        why = why_incomplete(rule, newest) if since <= newest.time <= until else None
        return f"{newest.path.name} is incomplete: {why}" if why and newest_complete(rule) is None else None
    own = {run.attempts_folder, run.code, run.hooks, run.journal}
    paths = [path for entry in entries(rule.folder) if (path := Path(entry.path)) not in own]
    paths = [path for path in paths if not path.name.endswith(".tmp") and since <= modified(path) <= until]
    near = [path for path in paths if rule.pattern.match(printable(path.name))]
    text = f"`checkpoint.pattern` ({rule.pattern.pattern})"
    if near:
        return f"{text} has to match the whole of {max(near, key=modified).name}"
    alike = [path for path in sorted(paths, key=modified, reverse=True)[:MOST_LOOKED_AT] if _holds_tensors(path)]
    if not alike:
        return None
    return f"{text} matches none of the files in {rule.folder}, such as {alike[0].name}"


def _holds_tensors(path: Path) -> bool:
    """Whether a file, or a file in a folder, is named like one with tensors."""
    files = [entry.name for entry in entries(path)[:MOST_LOOKED_AT]] if os.path.isdir(path) else [path.name]
    return any(os.path.splitext(file)[1] in TENSOR_FILES for file in files)
