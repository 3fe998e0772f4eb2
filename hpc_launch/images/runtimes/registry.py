"""Container runtimes by name."""

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
    """How to run a command in the container; empty without one."""
    if plan is None:
        return Wrapped()
    result: Wrapped = import_module(f"hpc_launch.images.runtimes.{MODULES[plan.runtime]}").wrap(plan)
    return result
