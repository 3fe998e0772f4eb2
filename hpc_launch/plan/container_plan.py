"""The container of a job: its image, and what is seen inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.job_size import Shape
from hpc_launch.plan.launch_plan import ContainerPlan, Variable
from hpc_launch.plan.tracker_environment import login_bind
from hpc_launch.spec.container import Container
from hpc_launch.spec.shell_text import Text, Var

Runtime = Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud", "none"]

FILES = frozenset({"apptainer", "singularity", "charliecloud"})
"""Runtimes whose images are files or folders; what the others call an image is looked up by them."""

STEPS = frozenset({"pyxis", "edf"})
"""Runtimes that srun itself starts."""


def container(words: ValueFiller, form: Shape, workdir: str, variables: Sequence[Variable]) -> ContainerPlan | None:
    """The container's plan; None where the job names no image, or with a finding where it cannot be run."""
    asked, site = words.resolved.job.container, words.resolved.site
    if asked is None:
        return None
    runtime, image = chosen(words, asked)
    if runtime == "none":
        words.fault("HL430", f"site {site.name} runs no containers", ("container",), "use `environment:`")
        return None
    if runtime in STEPS and site.scheduler.type == "local":
        words.fault("HL430", f"{runtime} is a part of Slurm's srun", ("container", "runtime"), "use `apptainer` here")
    if "://" in image and runtime in FILES and not site.containers.pull_on_nodes:
        message = f"{image} would be fetched by every node at once"
        once = f"`hpc-launch containers pull {image}` once; name its file"
        hint = "`ch-image pull` and `ch-convert` once; name what they make" if runtime == "charliecloud" else once
        words.fault("HL431", message, ("container", "image"), hint)
    declared = site.containers.images.get(asked.image)
    if declared is not None and declared.arch is not None:
        check_architecture(words, form, declared.arch)
    return ContainerPlan(
        runtime=runtime,
        image=image,
        binds=_binds(words, workdir),
        workdir=workdir,
        gpus=_gpus(form),
        home=site.containers.home if asked.home is None else asked.home,
        writable=site.containers.writable if asked.writable is None else asked.writable,
        options=(*site.containers.options, *asked.options),
        variables=(
            *(variable.name for variable in variables if variable.value is not None),
            *words.resolved.job.secrets,
        ),
    )


def check_architecture(words: ValueFiller, form: Shape, arch: str) -> None:
    """HL470 where an image is for another processor than the queue's nodes have."""
    nodes = form.node_class.arch
    if nodes is not None and nodes != arch:
        message = f"the image is for {arch}, and the nodes of queue `{form.queue_name}` are {nodes}"
        words.fault("HL470", message, ("container", "image"), f"build or pull it on a machine that is {nodes}")


def chosen(words: ValueFiller, asked: Container) -> tuple[Runtime, str]:
    """The runtime, and the image that is meant: by the site's name for it, and in full where it is a file."""
    site = words.resolved.site.containers
    runtime = asked.runtime or site.runtime
    named = site.images.get(asked.image)
    image = words.static(named.path if named else asked.image, ("container", "image"))
    return runtime, words.absolute(image) if runtime in FILES and "://" not in image else image


def _binds(words: ValueFiller, workdir: str) -> tuple[Text, ...]:
    asked, site = words.resolved.job.container, words.resolved.site
    ours: list[Text] = [(Var("HPC_LAUNCH_RUN_DIR"),), (words.resolved.job_folder,), (workdir,)]
    ours += [words.site_text(bind, ("containers", "binds", at)) for at, bind in enumerate(site.containers.binds)]
    theirs = []
    for index, bind in enumerate(asked.binds if asked else ()):
        path: tuple[str | int, ...] = ("container", "binds", index)
        source, colon, inside = words.static(bind, path).partition(":")
        if "," in bind or inside.startswith(":") or (colon and not inside.startswith("/")):
            words.fault("HL432", f"`{bind}` is no bind", path, "write PATH or PATH:INSIDE, with INSIDE from the root")
        theirs.append(words.absolute(source) + colon + inside)
    login = login_bind(words)
    if asked is not None and login is not None:
        # ch-run(1) knows no read-only binds; there the file's own mode has to do.
        theirs.append(f"{login}:{login}" + ("" if chosen(words, asked)[0] == "charliecloud" else ":ro"))
    return tuple(dict.fromkeys([*ours, *((bind,) for bind in theirs)]))


def _gpus(form: Shape) -> Literal["nvidia", "amd"] | None:
    vendor = form.node_class.gpu_vendor or "nvidia"
    return vendor if form.gpus_per_node and vendor != "intel" else None
