"""Keeping new jobs off the nodes that the team's runs found to be bad."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_launch.plan.recovery import RecoveryPlan
from hpc_launch.recover.ledger import kept_off
from hpc_launch.run.ledger import Ledger
from hpc_launch.schedulers.select import scheduler_for


def avoided(site: str, plan: RecoveryPlan, exclude: Sequence[str]) -> tuple[str, ...]:
    """The nodes of the ledger that a new job of this plan keeps off. Asks Slurm only where there are any."""
    standing = Ledger(site, plan.ledger).standing()
    if not any(one.avoided for one in standing):
        return ()
    size = scheduler_for("slurm").size(plan.partition)
    return kept_off(standing, size, plan.least_nodes, [*plan.exclude, *exclude])
