"""What a user must hear or confirm before a job is submitted: its cost, and who else uses its checkpoints and nodes."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_launch.base.errors import Refused
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.units import format_time
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.checkpoint_files import rule_of
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.runs.run_index import Index
from hpc_launch.service.listener import Listener


def confirm_cost(prepared: PreparedJob, listener: Listener, jobs: int = 1) -> None:
    """Ask if so many such jobs may use more GPU-hours than `confirm_gpu_hours`.

    Raises Refused for no, or where nobody answers.
    """
    plan, resolved = prepared.plan, prepared.loaded.resolved
    most, time_s = resolved.job.confirm_gpu_hours, plan.time_limit_s
    gpus = (plan.nodes + plan.spares) * plan.gpus_per_node
    if most is None or time_s is None or jobs * gpus * time_s <= most * 3600:
        return
    hours = jobs * gpus * time_s / 3600
    what = f"{jobs} points with {gpus} GPUs" if jobs > 1 else f"{gpus} GPUs"
    message = f"{what} for {format_time(time_s)} may use {hours:,.0f} GPU-hours, more than {most:,g}"
    if listener.answers:
        listener.say(message)
        if listener.confirm("submit it?"):
            return
    hint = "request fewer GPUs or less time, or add `--yes`"
    raise Refused([Finding(FindingCode.OVER_BUDGET, message, resolved.place("confirm_gpu_hours"), hint)])


def warn_about_node_health(plan: LaunchPlan, listener: Listener) -> None:
    """Name reports on bad nodes that this user or the team cannot see."""
    if plan.recovery.ledger is not None:
        for problem in NodeHealthStore(plan.site, plan.recovery.ledger).problems():
            listener.say(f"warning: {problem}")


def warn_about_shared_checkpoints(
    plan: LaunchPlan, index: Index, listener: Listener, run: RunFolder | None = None, *, trial: str | None = None
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
        listener.say(f"warning: {trial} saves its checkpoints in {folder}, and other runs will resume from them")
        listener.say("  hint: use ${run.dir} in `checkpoint.dir`, or give the trial a folder of its own with --set")
    unfinished = [RunFolder(entry.folder) for entry in index.entries(unfinished=True)]
    others = [other for other in unfinished if run is None or other.path != run.path]
    sharing = [other for other in others if _folder(other) == folder]
    if not sharing:
        return
    from hpc_launch.service.poll import poll_runs

    for status in poll_runs(sharing, index, listener, drive=False):
        if not status.final:
            listener.say(
                f"warning: {status.run} ({status.state}) saves its checkpoints in {folder} too: "
                "each run may overwrite the checkpoints of the other and resume from them"
            )
            listener.say("  hint: use ${run.dir} in `checkpoint.dir`, or wait until that run has ended")


def _folder(run: RunFolder) -> str | None:
    rule = rule_of(run)
    return None if rule is None else os.path.realpath(Path(rule.folder))
