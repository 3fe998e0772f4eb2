"""Schedulers by name. Each is imported only when used."""

from __future__ import annotations

from hpc_launch.base.errors import UsageError
from hpc_launch.schedulers.scheduler import Scheduler


def scheduler_for(kind: str) -> Scheduler:
    """The scheduler `slurm`, `ssh` or `local` of a site profile, or `allocation` for `hpc-launch run`.

    Raises UsageError for any other name.
    """
    if kind == "slurm":
        from hpc_launch.schedulers.slurm.slurm_scheduler import SlurmScheduler

        return SlurmScheduler()
    if kind in {"local", "allocation"}:
        from hpc_launch.schedulers.local.local_scheduler import LocalScheduler

        return LocalScheduler(in_allocation=kind == "allocation")
    if kind == "ssh":
        from hpc_launch.schedulers.ssh.ssh_scheduler import SshScheduler

        return SshScheduler()
    raise UsageError(f"unknown scheduler {kind!r}", "set the site's scheduler to `slurm`, `ssh` or `local`")
