"""What a container runtime hands back: the one seam between runtimes and scripts."""

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
"""What the launcher inside needs of the host where nothing comes in by itself; a star takes all that begin so."""


class Wrapped(Struct, frozen=True):
    """How a command gets into the container.

    `before` are the words in front of the command, as they stand on the lines of the script; `step` options of srun,
    where srun itself starts the container; `exports` variables whose values have to be exported under a second name
    too, which is `prefix` and their own.
    """

    before: tuple[Line, ...] = ()
    step: tuple[Text, ...] = ()
    exports: tuple[str, ...] = ()
    prefix: str = ""
