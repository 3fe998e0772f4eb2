"""podman-hpc (NERSC/podman-hpc README; podman-run(1) for the options it passes on)."""

from __future__ import annotations

from hpc_launch.images.runtimes.wrap_command import FROM_THE_JOB, CommandWrapper, Line
from hpc_launch.job.shell_text import Text, join_parts
from hpc_launch.plan.launch_plan import ContainerPlan

GPU: dict[str | None, tuple[str, ...]] = {
    "nvidia": ("--gpu",),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"),
    None: (),
}
"""podman-hpc's `--gpu` mounts only NVIDIA's libraries and devices (its etc/modules.d/gpu.yaml). AMD's driver needs two
devices (ROCm documentation, "Running ROCm Docker containers") and the user's groups (podman-run(1))."""


def wrap(plan: ContainerPlan) -> CommandWrapper:
    """`podman-hpc run … IMAGE`, with the host's network and shared memory, which collectives need."""
    first = ["podman-hpc", "run", "--rm", "--net=host", "--ipc=host", *GPU[plan.gpus]]
    lines: list[Line] = [tuple((word,) for word in first), ((f"--workdir={plan.workdir}",),)]
    lines += [(("--volume",), both_sides(bind)) for bind in plan.binds]
    names = dict.fromkeys((*FROM_THE_JOB, *plan.variables))
    lines.append(tuple(word for name in names for word in (("--env",), (name,))))
    lines += [((option,),) for option in plan.options]
    lines.append(((plan.image,),))
    return CommandWrapper(before=tuple(lines))


def both_sides(bind: Text) -> Text:
    """A bind with an explicit destination, for runtimes that do not default to the same path."""
    inside = any(isinstance(part, str) and ":" in part for part in bind)
    return bind if inside else join_parts([*bind, ":", *bind])
