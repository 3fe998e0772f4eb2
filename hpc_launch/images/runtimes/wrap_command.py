"""How each container runtime wraps a command: the interface between runtimes and scripts."""

from __future__ import annotations

from importlib import import_module

from msgspec import Struct

from hpc_launch.job.shell_text import Text
from hpc_launch.plan.launch_plan import ContainerPlan

Line = tuple[Text, ...]

FROM_THE_JOB = (
    "SLURM_*",
    "HPC_LAUNCH_*",
    "TORCH*",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)
"""Host variables that the launcher in the container needs; a star matches all names with that prefix."""


class CommandWrapper(Struct, frozen=True):
    """How to run a command in the container.

    `before` is the command prefix, by line of the script. `step` are srun options, if srun starts the container.
    `exports` are variables that must also be exported with `prefix` before their name.
    """

    before: tuple[Line, ...] = ()
    step: tuple[Text, ...] = ()
    exports: tuple[str, ...] = ()
    prefix: str = ""


MODULES = {
    "apptainer": "apptainer",
    "singularity": "apptainer",
    "pyxis": "pyxis",
    "edf": "edf",
    "podman-hpc": "podman",
    "shifter": "shifter",
    "charliecloud": "charliecloud",
}


def wrap_command(plan: ContainerPlan | None) -> CommandWrapper:
    """How to run a command in the container; empty without one."""
    if plan is None:
        return CommandWrapper()
    wrapper: CommandWrapper = import_module(f"hpc_launch.images.runtimes.{MODULES[plan.runtime]}").wrap(plan)
    return wrapper
