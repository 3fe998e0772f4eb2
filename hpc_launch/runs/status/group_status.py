"""The state of a sweep or a pipeline as one line of a list, by those of its runs."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.status.run_status import Progress, RunStatus

STATE_ORDER = (
    "RUNNING", "STARTING", "ENDING", "RETRYING", "SUBMITTING", "PENDING", "STUCK", "UNKNOWN",
    "FAILED", "STOPPED", "CANCELLED", "COMPLETED",
)  # fmt: skip
"""A group has the first of these states that one of its parts has."""


def group_status(
    run: RunFolder,
    state: str,
    reason: str | None,
    parts: Sequence[RunStatus],
    *,
    progress: Progress,
    undecided: bool,
    final_stamp: int | None,
) -> RunStatus:
    """The status of the folder `run`. Its source is that of a part in the same state, its age that of the oldest."""
    info = read_info(run)
    return RunStatus(
        run=run.name,
        name=info.name if info else run.name,
        site=info.site if info else "",
        folder=run.path,
        state=state,
        reason=reason,
        job_id=None,
        source=next((one.source for one in parts if one.state == state), "none"),
        age_s=max((one.age_s for one in parts if one.age_s is not None), default=None),
        progress=progress,
        undecided=undecided,
        final_stamp=final_stamp,
    )
