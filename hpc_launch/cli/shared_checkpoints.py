"""Warn about runs that save their checkpoints in one folder: at the same time, or a trial before the real one."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_launch.cli.warn import print_note
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.runs.checkpoint_files import rule_of
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index


def warn_about_shared_checkpoints(
    plan: LaunchPlan, index: Index, run: RunFolder | None = None, *, trial: str | None = None
) -> None:
    """Name the active runs that use the checkpoint folder of this plan; `run` is the plan's own.

    `trial`: the name of a trial whose checkpoints the real run would find.
    """
    rule = plan.continuation.checkpoint
    parts = [] if rule is None else [part for part in rule.folder if isinstance(part, str)]
    if rule is None or len(parts) < len(rule.folder):
        return  # each run has its own
    folder = os.path.realpath("".join(parts))
    if trial is not None:
        print_note(f"warning: {trial} saves its checkpoints in {folder}, and other runs will resume from them")
        print_note("  hint: use ${run.dir} in `checkpoint.dir`, or give the trial a folder of its own with --set")
    unfinished = [RunFolder(entry.folder) for entry in index.entries(unfinished=True)]
    others = [other for other in unfinished if run is None or other.path != run.path]
    sharing = [other for other in others if _folder(other) == folder]
    if not sharing:
        return
    from hpc_launch.cli.follow import poll_runs

    for status in poll_runs(sharing, index, drive=False):
        if not status.final:
            print_note(
                f"warning: {status.run} ({status.state}) saves its checkpoints in {folder} too: "
                "each run may overwrite the checkpoints of the other and resume from them"
            )
            print_note("  hint: use ${run.dir} in `checkpoint.dir`, or wait until that run has ended")


def _folder(run: RunFolder) -> str | None:
    rule = rule_of(run)
    return None if rule is None else os.path.realpath(Path(rule.folder))
