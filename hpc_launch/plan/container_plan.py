"""The container of a job: its runtime, image and bind mounts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.container import Container
from hpc_launch.job.shell_text import Text, Var
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.plan_parts import ContainerPlan, Variable
from hpc_launch.plan.tracker_environment import login_bind

Runtime = Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud", "none"]

FILES = frozenset({"apptainer", "singularity", "charliecloud"})
"""Runtimes whose images are files or folders; the others look image names up themselves."""

STEPS = frozenset({"pyxis", "edf"})
"""Runtimes that are options of srun."""


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
    if runtime in STEPS and site.scheduler.type == "local":
        message = f"{runtime} needs srun, and this site does not use Slurm"
        filler.fault(FindingCode.NO_CONTAINERS, message, ("container", "runtime"), "use `apptainer` here")
    if "://" in image and runtime in FILES and not site.containers.pull_on_nodes:
        message = f"every node would download {image} at the same time"
        once = f"run `hpc-launch containers pull {image}` once and name the file"
        hint = "run `ch-image pull` and `ch-convert` once and name the result" if runtime == "charliecloud" else once
        filler.fault(FindingCode.IMAGE_PULLED_BY_ALL_NODES, message, ("container", "image"), hint)
    declared = site.containers.images.get(asked.image)
    if declared is not None and declared.arch is not None:
        check_architecture(filler, size, declared.arch)
    return ContainerPlan(
        runtime=runtime,
        image=image,
        binds=_binds(filler, workdir),
        workdir=workdir,
        gpus=_gpus(size),
        home=site.containers.home if asked.home is None else asked.home,
        writable=site.containers.writable if asked.writable is None else asked.writable,
        options=(*site.containers.options, *asked.options),
        variables=(
            *(variable.name for variable in variables if variable.value is not None),
            *filler.resolved.job.secrets,
        ),
    )


def check_architecture(filler: ValueFiller, size: JobSize, arch: str) -> None:
    """HL470 if the image is for another processor architecture than the queue's nodes."""
    nodes = size.node_class.arch
    if nodes is not None and nodes != arch:
        message = f"the image is for {arch}, but the nodes of queue `{size.queue_name}` are {nodes}"
        hint = f"build or pull it on a {nodes} machine"
        filler.fault(FindingCode.WRONG_IMAGE_ARCHITECTURE, message, ("container", "image"), hint)


def runtime_and_image(filler: ValueFiller, asked: Container) -> tuple[Runtime, str]:
    """The runtime, and the image: looked up in the site profile, and absolute if it is a file."""
    site = filler.resolved.site.containers
    runtime = asked.runtime or site.runtime
    named = site.images.get(asked.image)
    image = filler.static(named.path if named else asked.image, ("container", "image"))
    return runtime, filler.absolute(image) if runtime in FILES and "://" not in image else image


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
    login = login_bind(filler)
    if asked is not None and login is not None:
        # ch-run(1) has no read-only binds; the file's own mode protects it there.
        job_binds.append(f"{login}:{login}" + ("" if runtime_and_image(filler, asked)[0] == "charliecloud" else ":ro"))
    return tuple(dict.fromkeys([*binds, *((bind,) for bind in job_binds)]))


def _gpus(size: JobSize) -> Literal["nvidia", "amd"] | None:
    vendor = size.node_class.gpu_vendor or "nvidia"
    return vendor if size.gpus_per_node and vendor != "intel" else None
