"""DeepSpeed's launcher: started on each node, or once, over ssh with pdsh."""

from __future__ import annotations

from hpc_launch.base.findings import FindingCode
from hpc_launch.plan.launch_plan import StepPlan
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, options_only
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.runtimes.container_runtimes import ContainerPlan

LOST_BY_PDSH = ("--bind_cores_to_rank", "--bind_core_list")
"""Options that DeepSpeed's PDSHRunner drops (deepspeed/launcher/multinode_runner.py, 0.19.8)."""


def _own_step(draft: PlanDraft, size: JobSize, container: ContainerPlan | None) -> StepPlan | None:
    """The step `pdsh` if DeepSpeed itself starts the other nodes."""
    site, job = draft.resolved.site, draft.resolved.job
    if site.scheduler.kind == "local":
        if job.launcher.multinode == "pdsh":
            message = "this site has no other nodes to reach over ssh"
            draft.fault(FindingCode.PDSH_NOT_POSSIBLE, message, ("launcher", "multinode"), "remove it for this site")
        return None
    if job.max_nodes == 1 or (job.launcher.multinode or site.launch.multinode) != "pdsh":
        return None
    _check_pdsh(draft, size, container)
    return StepPlan("pdsh")


def _check_pdsh(draft: PlanDraft, size: JobSize, container: ContainerPlan | None) -> None:
    path = ("launcher", "multinode")
    if container is not None:
        message = "DeepSpeed's ssh starts processes outside the container"
        hint = "use `multinode: no_ssh`, which starts one container per node"
        draft.fault(FindingCode.PDSH_NOT_POSSIBLE, message, path, hint)
    chosen = [host.name for host in draft.resolved.hosts if host.devices]
    if chosen:
        message = f"processes that DeepSpeed starts over ssh use the first GPUs of {chosen[0]}, not the chosen ones"
        hint = "use `multinode: no_ssh`, or remove the slots from `scheduler.include` and `exclude`"
        draft.fault(FindingCode.PDSH_NOT_POSSIBLE, message, path, hint)
    node, count = size.node_class, size.gpus_per_node
    if 0 < count < node.gpus and not size.queue.whole_nodes and not draft.resolved.hosts:
        message = f"processes started over ssh see all {node.gpus} GPUs of a node, but the job requests {count}"
        hint = "request whole nodes, or use `multinode: no_ssh`"
        draft.fault(FindingCode.SSH_IGNORES_GPU_REQUEST, message, path, hint)
    for index, option in enumerate(draft.resolved.job.launcher.options):
        if option.partition("=")[0] in LOST_BY_PDSH:
            message, hint = f"DeepSpeed does not pass `{option}` on over pdsh", "remove it, or use `multinode: no_ssh`"
            draft.fault(FindingCode.OPTION_LOST_OVER_PDSH, message, ("launcher", "options", index), hint)


DESCRIPTOR = LauncherDescriptor(
    name="deepspeed",
    tasks="node",
    plan=options_only,
    own_keys=frozenset({"multinode"}),
    own_step=_own_step,
    in_image=True,
    process_group=True,
    rank_variables="in_template",
    local_hosts=lambda nodes: tuple(f"node{node}" for node in range(nodes)),
    parts=("await_child", "deepspeed"),
)
