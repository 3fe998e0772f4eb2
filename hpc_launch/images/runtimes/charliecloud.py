"""Charliecloud (ch-run(1)): an image is a folder or a squashfs file, and the host's environment is passed through."""

from __future__ import annotations

from hpc_launch.images.runtimes.podman import both_sides
from hpc_launch.images.runtimes.wrap_command import CommandWrapper, Line
from hpc_launch.plan.launch_plan import ContainerPlan


def wrap(plan: ContainerPlan) -> CommandWrapper:
    """`ch-run … IMAGE --`."""
    lines: list[Line] = [(("ch-run",), ("--cd",), (plan.workdir,))]
    lines += [(("--bind",), both_sides(bind)) for bind in plan.binds]
    lines += [(("--home",),)] if plan.home else []
    lines += [(("--write-fake",),)] if plan.writable else []
    lines += [((option,),) for option in plan.options]
    lines.append(((plan.image,), ("--",)))
    return CommandWrapper(before=tuple(lines))
