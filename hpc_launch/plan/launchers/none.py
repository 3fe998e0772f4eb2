"""No launcher: the program is started once, on the first node, and starts its processes itself."""

from __future__ import annotations

from hpc_launch.base.findings import FindingCode
from hpc_launch.plan.launch_plan import StepPlan
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, options_only
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.runtimes.container_runtimes import ContainerPlan


def _own_step(draft: PlanDraft, _: JobSize, container: ContainerPlan | None) -> StepPlan | None:
    """The step `once`; as a role of a job the program is started by the site's step, once on each of its nodes."""
    if draft.resolved.role:
        return None
    _check_once(draft, container)
    return StepPlan("once")


def _check_once(draft: PlanDraft, container: ContainerPlan | None) -> None:
    job, local = draft.resolved.job, draft.resolved.site.scheduler.kind == "local"
    if job.launcher.options:
        hint = "remove them; put options for the program's own launcher into `args`"
        draft.fault(FindingCode.NO_LAUNCHER_OPTIONS, "`launcher: none` has no options", ("launcher", "options"), hint)
    if container is not None and (job.max_nodes > 1 or container.started_by_srun):
        message = (
            "with `launcher: none` the program starts its own processes, which is impossible from inside a container"
        )
        hint = "use `environment:`, or a launcher that is started on each node"
        draft.fault(FindingCode.PROGRAM_CANNOT_REACH_NODES, message, ("launcher",), hint)
    if local and job.max_nodes > 1:
        message = "a program that starts its own processes can use only one node on this machine"
        draft.fault(FindingCode.PROGRAM_CANNOT_REACH_NODES, message, ("nodes",), "set `nodes` to 1 on this site")


DESCRIPTOR = LauncherDescriptor(
    name="none",
    tasks="program",
    plan=options_only,
    own_step=_own_step,
    local_hosts=lambda _: ("localhost",),
)
