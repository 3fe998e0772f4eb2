"""Which scheduler a site has, by the word in its profile. Each is imported only when it is asked for."""

from __future__ import annotations

from hpc_launch.base.errors import UsageError
from hpc_launch.schedulers.scheduler import Scheduler


def scheduler_for(kind: str) -> Scheduler:
    """The scheduler that a site profile calls `slurm` or `local`, or `allocation` for `hpc-launch run`.

    Raises UsageError for any other word.
    """
    if kind == "slurm":
        from hpc_launch.schedulers.slurm.slurm_scheduler import SlurmScheduler

        return SlurmScheduler()
    if kind in {"local", "allocation"}:
        from hpc_launch.schedulers.local.local_scheduler import LocalScheduler

        return LocalScheduler(in_allocation=kind == "allocation")
    raise UsageError(f"there is no scheduler {kind!r}", "a site's scheduler is `slurm` or `local`")
