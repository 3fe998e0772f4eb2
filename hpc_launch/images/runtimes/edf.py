"""CSCS's Container Engine: an environment definition file, by name or path, for srun (CSCS's documentation)."""

from __future__ import annotations

from hpc_launch.images.runtimes.wrap_command import CommandWrapper
from hpc_launch.plan.launch_plan import ContainerPlan


def wrap(plan: ContainerPlan) -> CommandWrapper:
    """`srun --environment=IMAGE`; the file sets mounts, working directory and variables."""
    return CommandWrapper(step=((f"--environment={plan.image}",), *((option,) for option in plan.options)))
