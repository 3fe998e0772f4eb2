"""The runtime of a container plan, by its name."""

from __future__ import annotations

from importlib import import_module

from hpc_launch.images.wrapped import Wrapped
from hpc_launch.plan.launch_plan import ContainerPlan

MODULES = {
    "apptainer": "apptainer",
    "singularity": "apptainer",
    "pyxis": "pyxis",
    "edf": "edf",
    "podman-hpc": "podman",
    "shifter": "shifter",
    "charliecloud": "charliecloud",
}


def wrapped(plan: ContainerPlan | None) -> Wrapped:
    """How a command gets into the container; nothing at all without one."""
    if plan is None:
        return Wrapped()
    result: Wrapped = import_module(f"hpc_launch.images.runtimes.{MODULES[plan.runtime]}").wrap(plan)
    return result
