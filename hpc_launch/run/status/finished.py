"""Whether a training that ended with exit code 0 did its last step: one that was warned, saved and left has not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc_launch.run.records import values
from hpc_launch.run.status.run_status import Progress


def finished(end: Mapping[str, Any] | None, progress: Progress) -> bool | None:
    """Whether nothing is left to do after an attempt with this end record (end.json); None where nothing tells.

    In this order: an exit code other than 0 (no); the training's own word, the file HPC_LAUNCH_DONE_FILE (yes); the
    last step that its log or its newest checkpoint shows, beside the last one there will be. A log that shows each
    tenth step ends short of the last one, so a step counts as missing only where another line was due. Without any of
    these an end before the warning is one.
    """
    if end is None or values.whole(end.get("exit_code")) != 0:
        return False
    if values.flag(end.get("finished")):
        return True
    warned = values.flag(end.get("warned"))
    saved, total = values.whole(end.get("saved_step")), progress.total
    steps = [step for step in (progress.step, saved) if step is not None]
    if total is None or not steps:
        return None if warned else True
    step = max(steps)
    if step >= total:
        return True
    if progress.spacing is not None and step + progress.spacing <= total:
        return False
    return None if warned else True


def unfinished(end: Mapping[str, Any] | None, progress: Progress) -> str | None:
    """Why an attempt that ended with 0 is no success, in words; None where it is one, or nothing tells."""
    if finished(end, progress) is not False or end is None:
        return None
    saved = values.whole(end.get("saved_step"))
    step = max(step for step in (progress.step, saved, 0) if step is not None)
    how = "after the warning " if values.flag(end.get("warned")) else ""
    return f"the training ended {how}with exit code 0 at step {step} of {progress.total}: it is not finished"
