"""CSCS's Container Engine: an environment definition file, named or by path, for srun (CSCS's documentation)."""

from __future__ import annotations

from hpc_launch.images.wrapped import Wrapped
from hpc_launch.plan.launch_plan import ContainerPlan


def wrap(plan: ContainerPlan) -> Wrapped:
    """`srun --environment=IMAGE`; mounts, work folder and variables of the image are the file's own business."""
    return Wrapped(step=((f"--environment={plan.image}",), *((option,) for option in plan.options)))
