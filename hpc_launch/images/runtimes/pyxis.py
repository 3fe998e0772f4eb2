"""NVIDIA's Pyxis, an srun plug-in based on enroot (pyxis README, args.c)."""

from __future__ import annotations

from hpc_launch.images.runtimes.podman import both_sides
from hpc_launch.images.runtimes.wrap_command import CommandWrapper
from hpc_launch.job.shell_text import Part, Text, join_parts
from hpc_launch.plan.launch_plan import ContainerPlan


def wrap(plan: ContainerPlan) -> CommandWrapper:
    """srun options. The image's variables override the host's unless listed in `--container-env`."""
    mounts: list[Part] = []
    for bind in plan.binds:
        mounts += [*([","] if mounts else []), *both_sides(bind)]
    step: list[Text] = [
        (f"--container-image={plan.image}",),
        join_parts(["--container-mounts=", *mounts]),
        (f"--container-workdir={plan.workdir}",),
        ("--container-mount-home" if plan.home else "--no-container-mount-home",),
    ]
    if plan.writable:
        step.append(("--container-writable",))
    if plan.variables:
        step.append((f"--container-env={','.join(plan.variables)}",))
    return CommandWrapper(step=(*step, *((option,) for option in plan.options)))
