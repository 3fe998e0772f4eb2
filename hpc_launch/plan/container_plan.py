"""The container of a job: its runtime, image and bind mounts, and the steps inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.container import ACTIONS, Container, ContainerStep
from hpc_launch.job.document import KeyPath
from hpc_launch.job.shell_text import Text, Var
from hpc_launch.plan.environment import check_variable_name, module_steps
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.launch_plan import ContainerPlan, Prelude, SiteStep, Variable
from hpc_launch.plan.plan_draft import ValueFiller
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


def runtime_modules(filler: ValueFiller) -> tuple[Prelude, ...]:
    """The modules that the container runtime needs: the site's, then the job's."""
    container, resolved = filler.resolved.job.container, filler.resolved
    if container is None:
        return ()
    steps: list[Prelude] = []
    path: KeyPath
    for at, name in enumerate(resolved.site.containers.modules):
        path = ("containers", "modules", at)
        steps.append(Prelude("module", filler.site_text(name, path), resolved.site_origin(*path)))
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
    values = [("set", name, value) for name, value in (step.set or {}).items()]
    values += [("prepend", name, value) for name, value in (step.prepend or {}).items()]
    for key, name, value in values:
        here = (*path, key, name)
        if check_variable_name(filler, name, here):
            text = None if value is None else filler.text(value, here)
            variable = Variable(name, text, resolved.origin(*here), before=key == "prepend")
            yield SiteStep("variable", variable.origin, variable=variable)
    for at, name in enumerate(step.unset or ()):
        here = (*path, "unset", at)
        if check_variable_name(filler, name, here):
            variable = Variable(name, None, resolved.origin(*here))
            yield SiteStep("variable", variable.origin, variable=variable)


def _check_environment(filler: ValueFiller) -> None:
    """HL474: an environment activated on the host has no effect on the PATH inside the image."""
    environment, resolved = filler.resolved.job.environment, filler.resolved
    for key in ("conda", "venv"):
        if getattr(environment, key) is not None and resolved.origin("environment", key).layer != "default":
            message = f"`environment.{key}` is activated outside the image and has no effect inside it"
            hint = "remove it, or activate one inside: `container: {prelude: [{venv: FOLDER}]}`"
            filler.fault(FindingCode.ENVIRONMENT_OUTSIDE_CONTAINER, message, ("environment", key), hint, "warning")
