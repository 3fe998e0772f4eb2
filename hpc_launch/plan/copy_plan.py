"""Whether the hosts of a job share no folders, so that the job copies the run to each of them."""

from __future__ import annotations

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.shell_text import Text, Var, plain
from hpc_launch.plan.launch_plan import CheckpointPlan, CopyPlan
from hpc_launch.plan.plan_draft import ValueFiller


def copies(filler: ValueFiller, runs_folder: str, workdir: str, checkpoint: CheckpointPlan | None) -> CopyPlan | None:
    """The plan for copies, or None if the hosts need none; with a warning about checkpoints that they do not share."""
    site, job = filler.resolved.site, filler.resolved.job
    shared, code = site.scheduler.shared_folders, job.code
    if site.scheduler.type != "ssh" or shared is True or job.held_nodes == 1:
        return None
    folders = [filler.absolute(folder) for folder in shared] if isinstance(shared, list) else []
    place = _place(checkpoint.folder, runs_folder) if checkpoint is not None else None
    own = checkpoint is not None and (place is None or not _is_below(place, folders))
    if own:
        message = f"each host has a folder {place or 'of checkpoints'} of its own"
        hint = "save them below a folder that all hosts mount, and name that in `scheduler.shared_folders`"
        filler.fault(FindingCode.CHECKPOINTS_NOT_SHARED, message, ("checkpoint", "dir"), hint, "warning")
    if _is_below(runs_folder, folders) and _is_below(workdir, folders):
        return None
    send = code.copy_workdir and not _is_below(workdir, folders)
    return CopyPlan(send, tuple(code.exclude), code.limit, own)


def _place(folder: Text, runs_folder: str) -> str | None:
    """Where checkpoints are, as far as that is known now."""
    return runs_folder if folder[:1] == (Var("HPC_LAUNCH_RUN_DIR"),) else plain(folder)


def _is_below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
