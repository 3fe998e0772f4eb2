"""What nodes and hosts get a copy of: the software on their own disks, and the run where they share no folders."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_launch.job.document import Origin
from hpc_launch.job.shell_text import Text


class StagePlan(Struct, frozen=True):
    """Where the nodes put their own copy of the environment or image."""

    how: Literal["auto", "node"]
    folders: tuple[Text, ...] = ()
    """Candidates, in order. They may contain variables that only a node knows."""
    image: bool = False
    """Whether the image is copied, else the Python environment."""
    unsupported: str = ""
    """Why no copy can be made. The script says so."""
    origin: Origin = Origin("default")


class CopyPlan(Struct, frozen=True):
    """What each host gets, where the hosts share no folders."""

    workdir: bool
    """Whether it gets the working folder."""
    exclude: tuple[str, ...]
    limit_mib: int
    own_checkpoints: bool
    """Whether each host has a checkpoint folder of its own."""
