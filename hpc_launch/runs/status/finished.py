"""Whether a training that exited with 0 took its last step: after a warning it may have saved and exited early."""

from __future__ import annotations

from hpc_launch.runs.records.script_record import ScriptRecord
from hpc_launch.runs.status.run_status import Progress


def finished(end: ScriptRecord | None, progress: Progress) -> bool | None:
    """Whether no steps are left after an attempt with this end record; None where nothing tells.

    Checked in this order: an exit code other than 0 (no); the training's own statement, the file HPC_LAUNCH_DONE_FILE
    (yes); the last step in its log or its newest checkpoint against the total. A log that shows every tenth step ends
    short of the last one, so steps count as missing only where another line was due. Without any of these, an exit
    without a warning counts as finished.
    """
    if end is None or end.exit_code != 0:
        return False
    if end.finished:
        return True
    steps = [step for step in (progress.step, end.saved_step) if step is not None]
    if progress.total is None or not steps:
        return None if end.warned else True
    step = max(steps)
    if step >= progress.total:
        return True
    if progress.spacing is not None and step + progress.spacing <= progress.total:
        return False
    return None if end.warned else True


def unfinished(end: ScriptRecord | None, progress: Progress) -> str | None:
    """Why an attempt that exited with 0 is not a success, as text; None where it is one, or nothing tells."""
    if end is None or end.exit_code != 0 or finished(end, progress) is not False:
        return None
    step = max(step for step in (progress.step, end.saved_step, 0) if step is not None)
    how = "after the warning " if end.warned else ""
    return f"the training ended {how}with exit code 0 at step {step} of {progress.total}: it is not finished"
