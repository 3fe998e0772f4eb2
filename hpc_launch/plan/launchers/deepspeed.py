"""DeepSpeed's launcher: started on each node, or once, over ssh with pdsh."""

from __future__ import annotations

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.launch_plan import ContainerPlan, StepPlan
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, options_only
from hpc_launch.plan.plan_draft import PlanDraft

LOST_BY_PDSH = ("--bind_cores_to_rank", "--bind_core_list")
"""Options that DeepSpeed's PDSHRunner does not hand on (deepspeed/launcher/multinode_runner.py, 0.19.8)."""


def _own_step(draft: PlanDraft, size: JobSize, container: ContainerPlan | None) -> StepPlan | None:
    """The step `pdsh` if DeepSpeed itself starts the other nodes."""
    site, job = draft.resolved.site, draft.resolved.job
    if site.scheduler.type == "local":
        if job.launcher.multinode == "pdsh":
            message = "there are no other nodes to reach over ssh"
            draft.fault(FindingCode.PDSH_NOT_POSSIBLE, message, ("launcher", "multinode"), "take it out on this site")
        return None
    if job.max_nodes == 1 or (job.launcher.multinode or site.launch.multinode) != "pdsh":
        return None
    _check_pdsh(draft, size, container)
    return StepPlan("pdsh")


def _check_pdsh(draft: PlanDraft, size: JobSize, container: ContainerPlan | None) -> None:
    path = ("launcher", "multinode")
    if container is not None:
        message = "DeepSpeed's ssh arrives outside the container, and an image has no pdsh"
        draft.fault(
            FindingCode.PDSH_NOT_POSSIBLE,
            message,
            path,
            "use `multinode: no_ssh`: one container a node, with the launcher inside",
        )
    node, count = size.node_class, size.gpus_per_node
    if 0 < count < node.gpus and not size.queue.whole_nodes:
        message = f"what comes over ssh sees all {node.gpus} GPUs of a node, and {count} are asked for"
        draft.fault(
            FindingCode.SSH_IGNORES_GPU_REQUEST, message, path, "ask for whole nodes, or use `multinode: no_ssh`"
        )
    for index, option in enumerate(draft.resolved.job.launcher.options):
        if option.partition("=")[0] in LOST_BY_PDSH:
            message = f"DeepSpeed does not hand `{option}` on over pdsh"
            draft.fault(
                FindingCode.OPTION_LOST_OVER_PDSH,
                message,
                ("launcher", "options", index),
                "take it out, or use `multinode: no_ssh`",
            )


DESCRIPTOR = LauncherDescriptor(
    name="deepspeed",
    tasks="node",
    plan=options_only,
    own_keys=frozenset({"multinode"}),
    own_step=_own_step,
    in_image=True,
    rank_variables="in_template",
    local_hosts=lambda nodes: tuple(f"node{node}" for node in range(nodes)),
    parts=("await_child", "deepspeed"),
)
