"""Copies that a job makes: of the software on the nodes' own disks, and of the run on hosts without shared folders."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.shell_text import Text, Var, plain
from hpc_launch.plan.container_plan import FILES
from hpc_launch.plan.launch_plan import CheckpointPlan, ContainerPlan, CopyPlan, StagePlan, StepPlan
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.site_context import selected_options

FEWEST_NODES = 4
"""Nodes from which `auto` copies. The archive costs two full reads of the environment, and a training that starts on
fewer nodes reads less of it."""

MEMORY = "/dev/shm"  # noqa: S108 - the agent checks who owns what is there


def stage(filler: ValueFiller, step: StepPlan, container: ContainerPlan | None) -> StagePlan | None:
    """The plan for copies, or None if the job makes none."""
    job, resolved = filler.resolved.job, filler.resolved
    image = job.container is not None
    how = job.container.stage if job.container is not None else job.environment.stage
    if how == "off" or (not image and not _has_environment(filler)):
        return None
    folders = tuple(_node_folders(filler))
    if how == "auto" and (image or not folders or job.max_nodes < FEWEST_NODES):
        return None
    why = ""
    if step.kind not in ("srun", "local"):
        why = f"the nodes are started by {step.kind}" if step.kind != "once" else "the program starts the nodes itself"
    elif container is not None:
        why = _not_a_file(container)
    if why and how == "auto":
        return None
    origin = resolved.origin("container" if image else "environment", "stage")
    memory = ((MEMORY,),) if how == "node" else ()
    return StagePlan(how, (*folders, *memory), image, why, origin)


def _not_a_file(container: ContainerPlan) -> str:
    """Why the nodes cannot start a copy of the image; '' if they can."""
    if container.started_by_srun:
        return f"{container.runtime} starts one image on all nodes"
    if container.runtime not in FILES:
        return f"{container.runtime} takes images from its own store"
    return "each node downloads the image" if "://" in container.image else ""


def _has_environment(filler: ValueFiller) -> bool:
    environment = filler.resolved.job.environment
    return bool(environment.venv or environment.conda or "/" in (environment.python or ""))


def _node_folders(filler: ValueFiller) -> Iterator[Text]:
    """Node-local folders of the site that this job has."""
    options = selected_options(filler)
    for name, folder in filler.resolved.site.paths.items():
        if folder.node_local and (folder.option is None or folder.option in options) and filler.can_fill(folder.path):
            yield filler.site_text(folder.path, ("paths", name, "path"))


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
