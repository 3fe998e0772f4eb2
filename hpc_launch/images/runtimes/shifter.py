"""Shifter, as at NERSC (shifter(1)): the host's environment is passed through."""

from __future__ import annotations

from hpc_launch.images.runtimes.podman import both_sides
from hpc_launch.images.runtimes.wrap_command import CommandWrapper, Line
from hpc_launch.plan.launch_plan import ContainerPlan


def wrap(plan: ContainerPlan) -> CommandWrapper:
    """`shifter --image=IMAGE …`; pass its modules, e.g. `--module=gpu,nccl-plugin`, as `options`."""
    lines: list[Line] = [(("shifter",), (f"--image={plan.image}",)), ((f"--workdir={plan.workdir}",),)]
    lines += [(("--volume",), both_sides(bind)) for bind in plan.binds]
    lines += [((option,),) for option in plan.options]
    return CommandWrapper(before=tuple(lines))
