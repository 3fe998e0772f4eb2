"""The container of a job: its runtime, image and bind mounts, and the steps inside it; and the copies that a job makes.

It copies software and data to the nodes' own disks, and the run to hosts without shared folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpc_launch.base.findings import FindingCode
from hpc_launch.job.container import ACTIONS, Container, ContainerStep, Data
from hpc_launch.job.document import KeyPath
from hpc_launch.job.shell_text import Text, Var, plain
from hpc_launch.plan.environment import check_variable_name, module_steps
from hpc_launch.plan.job_size import selected_options
from hpc_launch.plan.launch_plan import CopyPlan, Prelude, SiteStep, StagePlan, StepPlan, Variable
from hpc_launch.plan.plan_draft import JobSize, ValueFiller
from hpc_launch.plan.recorded_parts import CheckpointPlan
from hpc_launch.plan.tracker_environment import login_bind
from hpc_launch.runtimes.container_runtimes import ContainerPlan, runtime_of


def is_file(runtime: str, image: str) -> bool:
    """Whether the image is a file or folder that exists before the job starts."""
    return runtime_of(runtime).files and "://" not in image


def container(filler: ValueFiller, size: JobSize, workdir: str, variables: Sequence[Variable]) -> ContainerPlan | None:
    """The container plan; None if the job names no image, or with a finding if it cannot be run."""
    asked, site = filler.resolved.job.container, filler.resolved.site
    if asked is None:
        return None
    runtime, image = runtime_and_image(filler, asked)
    if runtime == "none":
        hint = "use `environment:` instead"
        filler.fault(FindingCode.NO_CONTAINERS, f"site {site.name} has no container runtime", ("container",), hint)
        return None
    mine = runtime_of(runtime)
    if mine.of_srun and site.scheduler.kind == "local":
        message = f"{runtime} needs srun, and this site does not use Slurm"
        filler.fault(FindingCode.NO_CONTAINERS, message, ("container", "runtime"), "use `apptainer` here")
    if "://" in image and mine.files and not site.containers.pull_on_nodes:
        message = f"every node would download {image} at the same time"
        once = f"run `hpc-launch containers pull {image}` once and name the file"
        hint = "run `ch-image pull` and `ch-convert` once and name the result" if runtime == "charliecloud" else once
        filler.fault(FindingCode.IMAGE_PULLED_BY_ALL_NODES, message, ("container", "image"), hint)
    declared = site.containers.images.get(asked.image)
    if declared is not None and declared.arch is not None:
        check_architecture(filler, size, declared.arch)
    vendor = size.node_class.gpu_vendor or "nvidia"
    return ContainerPlan(
        runtime=runtime,
        image=image,
        binds=_binds(filler, workdir),
        workdir=workdir,
        gpus=vendor if size.gpus_per_node and vendor != "intel" else None,
        home=site.containers.home if asked.home is None else asked.home,
        writable=site.containers.writable if asked.writable is None else asked.writable,
        options=(*site.containers.options, *asked.options),
        variables=(
            *(variable.name for variable in variables if variable.value is not None),
            *filler.resolved.job.secrets,
        ),
        started_by_srun=mine.of_srun,
    )


def check_architecture(filler: ValueFiller, size: JobSize, arch: str) -> None:
    """HL470 if the image is for another processor architecture than the queue's nodes."""
    nodes = size.node_class.arch
    if nodes is not None and nodes != arch:
        message = f"the image is for {arch}, but the nodes of queue `{size.queue_name}` are {nodes}"
        hint = f"build or pull it on a {nodes} machine"
        filler.fault(FindingCode.WRONG_IMAGE_ARCHITECTURE, message, ("container", "image"), hint)


def runtime_and_image(filler: ValueFiller, asked: Container) -> tuple[str, str]:
    """The runtime, and the image: looked up in the site profile, and absolute if it is a file."""
    site = filler.resolved.site.containers
    runtime = asked.runtime or site.runtime
    named = site.images.get(asked.image)
    image = filler.static(named.path if named else asked.image, ("container", "image"))
    return runtime, filler.absolute(image) if is_file(runtime, image) else image


def _binds(filler: ValueFiller, workdir: str) -> tuple[Text, ...]:
    asked, site = filler.resolved.job.container, filler.resolved.site
    binds: list[Text] = [(Var("HPC_LAUNCH_RUN_DIR"),), (filler.resolved.job_folder,), (workdir,)]
    binds += [filler.site_text(bind, ("containers", "binds", at)) for at, bind in enumerate(site.containers.binds)]
    job_binds = []
    for index, bind in enumerate(asked.binds if asked else ()):
        path: tuple[str | int, ...] = ("container", "binds", index)
        source, colon, inside = filler.static(bind, path).partition(":")
        if "," in bind or inside.startswith(":") or (colon and not inside.startswith("/")):
            hint = "write PATH or PATH:INSIDE, with an absolute INSIDE"
            filler.fault(FindingCode.INVALID_BIND, f"`{bind}` is not a valid bind mount", path, hint)
        job_binds.append(filler.absolute(source) + colon + inside)
    if filler.resolved.job.data is not None:  # each node sets the variables
        binds.append((Var("HPC_LAUNCH_DATA_FROM"), ":", Var("HPC_LAUNCH_DATA_AT")))
    login = login_bind(filler)
    if asked is not None and login is not None:
        # ch-run(1) has no read-only binds; the file's own mode protects it there.
        job_binds.append(f"{login}:{login}" + ("" if runtime_and_image(filler, asked)[0] == "charliecloud" else ":ro"))
    return tuple(dict.fromkeys([*binds, *((bind,) for bind in job_binds)]))


def runtime_modules(filler: ValueFiller) -> tuple[Prelude, ...]:
    """The modules that the container runtime needs: the site's, then the job's."""
    container, resolved = filler.resolved.job.container, filler.resolved
    if container is None:
        return ()
    named = {("containers", "modules", at): name for at, name in enumerate(resolved.site.containers.modules)}
    steps = (Prelude("module", filler.site_text(name, at), resolved.site_origin(*at)) for at, name in named.items())
    return (*steps, *module_steps(filler, container.modules, ("container", "modules")))


def inner_steps(filler: ValueFiller, variables: Sequence[Variable]) -> tuple[SiteStep, ...]:
    """`container.prelude` as steps, with a finding for each step that does not have exactly one action.

    `variables` are those of the job's shell: a file that is sourced inside may set what the job's `env` sets, whose
    word is the last, unless a step of the prelude itself sets it.
    """
    container, resolved = filler.resolved.job.container, filler.resolved
    if container is None:
        return ()
    _check_environment(filler)
    steps: list[SiteStep] = []
    for at, step in enumerate(container.prelude):
        path: KeyPath = ("container", "prelude", at)
        actions = [action for action in ACTIONS if getattr(step, action) is not None]
        if len(actions) != 1:
            has = " and ".join(f"`{one}`" for one in actions) or "none"
            message = f"a step needs exactly one action; this one has {has}"
            filler.fault(FindingCode.INVALID_CONTAINER_STEP, message, path, f"use one of {', '.join(ACTIONS)}")
        steps += _step(filler, step, path)
    if any(step.kind == "source" for step in steps):
        own = {step.variable.name for step in steps if step.variable is not None}
        again = (one for one in variables if one.name in resolved.job.env and one.name not in own)
        steps += [SiteStep("variable", one.origin, variable=one) for one in again]
    return tuple(steps)


def _step(filler: ValueFiller, step: ContainerStep, path: KeyPath) -> Iterator[SiteStep]:
    resolved = filler.resolved
    if step.source is not None:
        here = (*path, "source")
        yield SiteStep("source", resolved.origin(*here), (filler.text(step.source, here),))
    if step.venv is not None:
        here = (*path, "venv")
        yield SiteStep("source", resolved.origin(*here), ((*filler.text(step.venv, here), "/bin/activate"),))
    values: list[tuple[str, str | int, str, Any]] = [("set", name, name, one) for name, one in (step.set or {}).items()]
    values += [("prepend", name, name, value) for name, value in (step.prepend or {}).items()]
    values += [("unset", at, name, None) for at, name in enumerate(step.unset or ())]
    for key, at, name, value in values:
        here = (*path, key, at)
        if check_variable_name(filler, name, here):
            text = None if value is None else filler.text(value, here)
            variable = Variable(name, text, resolved.origin(*here), before=key == "prepend")
            yield SiteStep("variable", variable.origin, variable=variable)


def _check_environment(filler: ValueFiller) -> None:
    """HL474: an environment activated on the host has no effect on the PATH inside the image."""
    environment, resolved = filler.resolved.job.environment, filler.resolved
    for key in ("conda", "venv"):
        if getattr(environment, key) is not None and resolved.origin("environment", key).layer != "default":
            message = f"`environment.{key}` is activated outside the image and has no effect inside it"
            hint = "remove it, or activate one inside: `container: {prelude: [{venv: FOLDER}]}`"
            filler.fault(FindingCode.ENVIRONMENT_OUTSIDE_CONTAINER, message, ("environment", key), hint, "warning")


FEWEST_NODES = 4
"""Nodes from which `auto` copies. The archive costs two full reads of the environment, and a training that starts on
fewer nodes reads less of it."""

MEMORY = "/dev/shm"  # noqa: S108 - the agent checks who owns what is there


def stage(filler: ValueFiller, step: StepPlan, container: ContainerPlan | None, python: Text) -> StagePlan | None:
    """The plan for copies, or None if the job makes none."""
    job, resolved = filler.resolved.job, filler.resolved
    image = job.container is not None
    how = job.container.stage if job.container is not None else job.environment.stage
    own = job.environment
    if how == "off" or not (image or own.venv or own.conda or "/" in (own.python or "")):
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
    if why:
        return StagePlan(how, unsupported=why, origin=origin)
    folders += ((MEMORY,),) if how == "node" else ()
    if container is not None:
        return StagePlan(how, folders, "HPC_LAUNCH_IMAGE", (container.image,), origin=origin)
    path = any(isinstance(part, Var) or "/" in part for part in python)
    return StagePlan(how, folders, "HPC_LAUNCH_PYTHON", python if path else (), origin=origin)


def _not_a_file(container: ContainerPlan) -> str:
    """Why the nodes cannot start a copy of the image; '' if they can."""
    if container.started_by_srun:
        return f"{container.runtime} starts one image on all nodes"
    if not runtime_of(container.runtime).files:
        return f"{container.runtime} takes images from its own store"
    return "each node downloads the image" if "://" in container.image else ""


def _node_folders(filler: ValueFiller) -> Iterator[Text]:
    """Node-local folders of the site that this job has."""
    options = selected_options(filler)
    for name, folder in filler.resolved.site.paths.items():
        if folder.node_local and (folder.option is None or folder.option in options) and filler.can_fill(folder.path):
            yield filler.site_text(folder.path, ("paths", name, "path"))


def data(filler: ValueFiller, step: StepPlan, container: ContainerPlan | None) -> StagePlan | None:
    """The plan for the data, with HL221 if the nodes of this job cannot get it."""
    asked = filler.resolved.job.data
    if asked is None:
        return None
    why, hint = _not_possible(filler, asked, step, container)
    if why:
        filler.fault(FindingCode.DATA_NOT_POSSIBLE, why, ("data",), hint)
    source, folders = filler.file(asked.source, ("data", "from")), (*_node_folders(filler), (MEMORY,))
    how = "shard" if asked.shard else asked.how
    return StagePlan(how, folders, "HPC_LAUNCH_DATA", (source,), origin=filler.resolved.origin("data"))


def _not_possible(filler: ValueFiller, asked: Data, step: StepPlan, container: ContainerPlan | None) -> tuple[str, str]:
    """Why the nodes cannot get the data, and a hint; empty if they can."""
    job, hint = filler.resolved.job, "use `how: off`: the training then finds the original at $HPC_LAUNCH_DATA"
    if asked.shard and (asked.how in ("mount", "off") or job.elastic):
        what = f"not with `how: {asked.how}`" if not job.elastic else "an elastic run loses them with a node"
        return f"shards are copied to a fixed number of nodes: {what}", "remove `shard`, or the other key"
    if asked.how != "off" and container is not None and container.started_by_srun:
        return f"{container.runtime} starts the image before the nodes have the data", hint
    alone = step.kind == "once" and job.max_nodes == 1 and filler.resolved.site.scheduler.type != "ssh"
    if asked.how == "off" or alone or step.kind in ("srun", "local"):
        return "", ""
    return f"the nodes are started by {step.kind}, which gives them no data", hint


def copies(filler: ValueFiller, runs_folder: str, workdir: str, checkpoint: CheckpointPlan | None) -> CopyPlan | None:
    """The plan for copies, or None if the hosts need none; with a warning about checkpoints that they do not share."""
    site, job = filler.resolved.site, filler.resolved.job
    shared, code = site.scheduler.shared_folders, job.code
    if site.scheduler.type != "ssh" or shared is True or job.held_nodes == 1:
        return None
    folders = [filler.absolute(folder) for folder in shared] if isinstance(shared, list) else []
    place = None  # of the checkpoints, as far as it is known now
    if checkpoint is not None:
        place = runs_folder if checkpoint.dir[:1] == (None,) else plain(checkpoint.text)
    own = checkpoint is not None and (place is None or not _is_below(place, folders))
    if own:
        message = f"each host has a folder {place or 'of checkpoints'} of its own"
        hint = "save them below a folder that all hosts mount, and name that in `scheduler.shared_folders`"
        filler.fault(FindingCode.CHECKPOINTS_NOT_SHARED, message, ("checkpoint", "dir"), hint, "warning")
    if _is_below(runs_folder, folders) and _is_below(workdir, folders):
        return None
    send = code.copy_workdir and not _is_below(workdir, folders)
    return CopyPlan(send, tuple(code.exclude), code.limit, own)


def _is_below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
