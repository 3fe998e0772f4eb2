"""Ray: a cluster on the nodes of a role, and the role's program on the first of them."""

from __future__ import annotations

from hpc_launch.base.findings import FindingCode
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, LauncherPlan, options_only
from hpc_launch.plan.plan_draft import PlanDraft


def _plan(draft: PlanDraft) -> LauncherPlan:
    if not draft.resolved.role:
        message, hint = "`launcher: ray` is for roles", "write `roles: {train: {launcher: ray, ends: job, …}}`"
        draft.fault(FindingCode.INVALID_ROLE, message, ("launcher",), hint)
    return options_only(draft)


DESCRIPTOR = LauncherDescriptor(
    name="ray",
    tasks="node",
    plan=_plan,
    named_ports=(
        *("gcs", "client", "dashboard", "node_manager", "object_manager", "dashboard_agent"),
        *("dashboard_agent_grpc", "runtime_env", "metrics"),
    ),
    port_range=1100,  # one for each worker process; NeMo RL found 257 too few
)
