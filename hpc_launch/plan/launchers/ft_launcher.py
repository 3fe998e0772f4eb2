"""NVIDIA's ft_launcher: torchrun with hot restarts of hung ranks.

Read from nvidia-resiliency-ext 0.4.1, nvidia_resiliency_ext/fault_tolerance/launcher.py: the options of torchrun, and
c10d as the only rendezvous. Its own settings, `--ft-…`, go into `launcher.options`.
"""

from __future__ import annotations

from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, LauncherPlan
from hpc_launch.plan.plan_draft import PlanDraft

RESTARTS = 3
"""Default of `max_restarts`: without restarts it behaves like torchrun."""


def _plan(draft: PlanDraft) -> LauncherPlan:
    asked = draft.resolved.job.launcher
    restarts = RESTARTS if asked.max_restarts is None else asked.max_restarts
    return LauncherPlan("c10d", restarts, tuple(asked.options))


DESCRIPTOR = LauncherDescriptor(
    name="ft_launcher",
    tasks="node",
    plan=_plan,
    own_keys=frozenset({"max_restarts"}),
    elastic=True,
    in_image=True,
    process_group=True,
    prefixes_ranks=True,
    rank_variables="each_rank",
)
