"""The interface between container runtimes and scripts."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.spec.shell_text import Text

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
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)
"""Host variables that the launcher in the container needs; a star matches all names with that prefix."""


class Wrapped(Struct, frozen=True):
    """How to run a command in the container.

    `before` is the command prefix, by line of the script. `step` are srun options, if srun starts the container.
    `exports` are variables that must also be exported with `prefix` before their name.
    """

    before: tuple[Line, ...] = ()
    step: tuple[Text, ...] = ()
    exports: tuple[str, ...] = ()
    prefix: str = ""
