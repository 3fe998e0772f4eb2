"""The container runtimes: what other code asks about each, and how it starts a command in an image. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from msgspec import Struct

from hpc_launch.job.shell_text import Part, Text, join_parts
from hpc_launch.job.type_hints import RuntimeName
from hpc_launch.plugins.entry_points import Descriptor, guarded, load

Line = tuple[Text, ...]


class ContainerPlan(Struct, frozen=True):
    """The image and how to run it."""

    runtime: RuntimeName
    image: str
    binds: tuple[Text, ...]
    """`PATH` or `PATH:INSIDE`."""
    workdir: str
    gpus: Literal["nvidia", "amd"] | None
    home: bool
    writable: bool
    options: tuple[str, ...]
    variables: tuple[str, ...]
    """Variables that keep the job's value inside the container, whatever the image sets."""
    started_by_srun: bool = False
    """Whether the runtime is an option of srun."""


FROM_THE_JOB = tuple(
    "SLURM_* HPC_LAUNCH_* TORCH* MASTER_ADDR MASTER_PORT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK "
    "NODE_RANK CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES".split()
)
"""Host variables that the launcher in the container needs; a star matches all names with that prefix."""


class CommandWrapper(Struct, frozen=True):
    """How to run a command in the container.

    `before` is the command prefix, by line of the script. `step` are srun options, if srun starts the container.
    `exports` are variables that must also be exported with `prefix` before their name. `mounts_images`: whether a mount
    may be a squashfs image, with `image-src`.
    """

    before: tuple[Line, ...] = ()
    step: tuple[Text, ...] = ()
    exports: tuple[str, ...] = ()
    prefix: str = ""
    mounts_images: bool = False


def _options(plan: ContainerPlan) -> list[Line]:
    return [((option,),) for option in plan.options]


def _binds(plan: ContainerPlan, option: str) -> list[Line]:
    """A line for each bind, with an explicit destination: these runtimes do not default to the same path."""
    return [((option,), _both_sides(bind)) for bind in plan.binds]


def _both_sides(bind: Text) -> Text:
    inside = any(isinstance(part, str) and ":" in part for part in bind)
    return bind if inside else join_parts([*bind, ":", *bind])


_CLEANING = frozenset({"-e", "--cleanenv", "-C", "--containall"})
"""Options that clear the host's environment, including the launcher's variables (apptainer-exec(1))."""


def _apptainer(plan: ContainerPlan) -> CommandWrapper:
    """`apptainer exec … IMAGE`, or SingularityCE (apptainer-userdocs: environment, bind_paths_and_mounts, gpu).

    Variables are passed as APPTAINERENV_NAME: otherwise the image's value would override the host's, and `--env` splits
    values at commas. `--no-eval` prevents their evaluation as shell code.
    """
    first = [plan.runtime, "exec", "--no-eval"]
    first += [{"nvidia": "--nv", "amd": "--rocm"}[plan.gpus]] if plan.gpus else []
    first += [] if plan.home or _has_home(plan) else ["--no-home"]
    first += ["--writable-tmpfs"] if plan.writable else []
    prefix = "APPTAINERENV_" if plan.runtime == "apptainer" else "SINGULARITYENV_"
    lines: list[Line] = [] if _CLEANING.isdisjoint(plan.options) else [_handing_on(prefix)]
    lines += [tuple((word,) for word in first), (("--pwd",), (plan.workdir,))]
    lines += [(("--bind",), bind) for bind in plan.binds]
    lines += [*_options(plan), ((plan.image,),)]
    return CommandWrapper(before=tuple(lines), exports=plan.variables, prefix=prefix, mounts_images=True)


def _has_home(plan: ContainerPlan) -> bool:
    """Whether an option names the home itself: beside `--no-home` it would have no effect."""
    return any(option.partition("=")[0] in {"-H", "--home"} for option in plan.options)


def _handing_on(prefix: str) -> Line:
    """A shell on the node that exports the variables of the launcher and Slurm under the runtime's prefix."""
    names = " | ".join(FROM_THE_JOB)
    code = f'for n in $(compgen -e); do case $n in {names}) export "{prefix}$n=${{!n}}" ;; esac; done; exec "$@"'
    return (("bash",), ("-c",), (code,), ("bash",))


_PODMAN_GPU: dict[str | None, tuple[str, ...]] = {
    "nvidia": ("--gpu",),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"),
    None: (),
}
"""podman-hpc's `--gpu` mounts only NVIDIA's libraries and devices (its etc/modules.d/gpu.yaml). AMD's driver needs two
devices (ROCm documentation, "Running ROCm Docker containers") and the user's groups (podman-run(1))."""


def _podman(plan: ContainerPlan) -> CommandWrapper:
    """`podman-hpc run … IMAGE`, with the host's network and shared memory, which collectives need.

    See the README of NERSC/podman-hpc, and podman-run(1) for the options that it passes on.
    """
    first = ["podman-hpc", "run", "--rm", "--net=host", "--ipc=host", *_PODMAN_GPU[plan.gpus]]
    names = dict.fromkeys((*FROM_THE_JOB, *plan.variables))
    lines: list[Line] = [tuple((word,) for word in first), ((f"--workdir={plan.workdir}",),)]
    lines += _binds(plan, "--volume")
    lines.append(tuple(word for name in names for word in (("--env",), (name,))))
    lines += [*_options(plan), ((plan.image,),)]
    return CommandWrapper(before=tuple(lines))


def _pyxis(plan: ContainerPlan) -> CommandWrapper:
    """Options of srun for NVIDIA's plug-in, based on enroot (pyxis README, args.c).

    The image's variables override the host's unless listed in `--container-env`.
    """
    mounts: list[Part] = []
    for bind in plan.binds:
        mounts += [*([","] if mounts else []), *_both_sides(bind)]
    step: list[Text] = [
        (f"--container-image={plan.image}",),
        join_parts(["--container-mounts=", *mounts]),
        (f"--container-workdir={plan.workdir}",),
        ("--container-mount-home" if plan.home else "--no-container-mount-home",),
    ]
    step += [("--container-writable",)] if plan.writable else []
    step += [(f"--container-env={','.join(plan.variables)}",)] if plan.variables else []
    return CommandWrapper(step=(*step, *((option,) for option in plan.options)))


def _edf(plan: ContainerPlan) -> CommandWrapper:
    """`srun --environment=IMAGE`: CSCS's Container Engine (its documentation).

    The environment definition file, by name or path, sets mounts, working directory and variables.
    """
    return CommandWrapper(step=((f"--environment={plan.image}",), *((option,) for option in plan.options)))


def _shifter(plan: ContainerPlan) -> CommandWrapper:
    """`shifter --image=IMAGE …` (shifter(1)), which passes the host's environment through.

    Its modules, such as `--module=gpu,nccl-plugin`, are `options`.
    """
    lines: list[Line] = [(("shifter",), (f"--image={plan.image}",)), ((f"--workdir={plan.workdir}",),)]
    return CommandWrapper(before=(*lines, *_binds(plan, "--volume"), *_options(plan)))


def _charliecloud(plan: ContainerPlan) -> CommandWrapper:
    """`ch-run … IMAGE --` (ch-run(1)), which passes the host's environment through."""
    lines: list[Line] = [(("ch-run",), ("--cd",), (plan.workdir,)), *_binds(plan, "--bind")]
    lines += [(("--home",),)] if plan.home else []
    lines += [(("--write-fake",),)] if plan.writable else []
    return CommandWrapper(before=(*lines, *_options(plan), ((plan.image,), ("--",))))


class RuntimeDescriptor(Descriptor, frozen=True, kw_only=True):
    """One container runtime."""

    group: ClassVar[str] = "runtimes"
    wrap: Callable[[ContainerPlan], CommandWrapper]
    files: bool = False
    """Whether its images are files or folders; others look image names up themselves."""
    of_srun: bool = False
    """Whether it is an option of srun."""
    binds: bool = True
    """Whether mounts can be added; without, it reads them from a file of its own."""
    program: str = ""
    """The command on the nodes, if its name is another one."""


RUNTIMES = {
    one.name: one
    for one in (
        RuntimeDescriptor(name="apptainer", wrap=_apptainer, files=True),
        RuntimeDescriptor(name="singularity", wrap=_apptainer, files=True),
        RuntimeDescriptor(name="pyxis", wrap=_pyxis, of_srun=True),
        RuntimeDescriptor(name="edf", wrap=_edf, of_srun=True, binds=False),
        RuntimeDescriptor(name="podman-hpc", wrap=_podman),
        RuntimeDescriptor(name="shifter", wrap=_shifter),
        RuntimeDescriptor(name="charliecloud", wrap=_charliecloud, files=True, program="ch-run"),
        RuntimeDescriptor(name="none", wrap=lambda _: CommandWrapper()),
    )
}

BY_PROGRAM = {one.program or one.name: one.name for one in RUNTIMES.values() if not one.of_srun and one.name != "none"}
"""Runtimes by their commands; of several on a machine, the first is used."""


def runtime_of(name: str) -> RuntimeDescriptor:
    """The descriptor of that name. Raises Refused for one of another package that does not work."""
    return RUNTIMES.get(name) or load("runtimes", name, RuntimeDescriptor)


def wrap_command(plan: ContainerPlan | None) -> CommandWrapper:
    """How to run a command in the container; empty without one."""
    if plan is None:
        return CommandWrapper()
    with guarded("runtimes", plan.runtime):
        return runtime_of(plan.runtime).wrap(plan)
