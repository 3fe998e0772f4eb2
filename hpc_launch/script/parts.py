"""The static part of a script: the files of `slurm_templates/parts/` that it runs, and `runtime.sh`, which has all."""

from __future__ import annotations

import hashlib
from functools import cache

from hpc_launch.base.installed import shipped
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor
from hpc_launch.runtimes.container_runtimes import CommandWrapper

TASK_MARK = "HPC_LAUNCH_TASK_NUMBER_"
"""Stands for the number of the task in the files that the tasks of an array share."""

MARKER = "# ===== Below: the same in every job ====="
"""The line between the job's own part and the static part."""
RUNTIME = "runtime.sh"
_HEAD = """\
# shellcheck shell=bash disable=SC2154
# Runs a job: the parts that its script names in `job_parts`, in their order. From slurm_templates/parts/ of hpc-launch.
for job_part in "${job_parts[@]}"; do
case $job_part in
"""


@cache
def runtime() -> str:
    """The text of `runtime.sh`: every part. Bash reads all of it before it runs the first line."""
    names = sorted(path.stem for path in (shipped("slurm_templates") / "parts").glob("*.sh"))
    return _HEAD + "".join(f"{name}){part(name)};;\n" for name in names) + "esac\ndone\n"


@cache
def runtime_digest() -> str:
    """Its SHA-256."""
    return hashlib.sha256(runtime().encode()).hexdigest()


@cache
def part(name: str) -> str:
    """The text of one part."""
    return (shipped("slurm_templates") / "parts" / f"{name}.sh").read_text("utf-8")


def part_names(plan: LaunchPlan, launcher: LauncherDescriptor, container: CommandWrapper) -> tuple[str, ...]:
    """The parts of a plan's script, in their order."""
    slurm, notify, check, copies = plan.scheduler == "slurm", plan.notify is not None, plan.node_check, plan.copies
    checkpoint, stage, around = plan.continuation.checkpoint, plan.stage, plan.around
    ranks = launcher.rank_variables if around.rank_variables else ""
    without_srun, of_package = _checks_without_srun(plan), plan.submitted_to != plan.scheduler
    resolve = "address_of_interface" if plan.master.interface is not None else f"address_by_{plan.master.resolve}"
    staged = stage is not None and not stage.unsupported
    has_data = plan.data is not None and plan.data.how != "off"
    rows = (
        (True, f"messages job_{'role' if plan.role else plan.scheduler} in_place attempt"),
        ((slurm or of_package) and not plan.role, "run_hook"),
        (slurm and not plan.role, "requeue continue_here"),
        (any(one.option == "requeue" and one.value for one in plan.directives), "expedite"),
        (True, "claim"),
        (plan.chooses_nodes, "spares survivor"),
        (True, f"records signals variables {'resume' if checkpoint else 'fresh'}"),
        (notify, "notify"),
        (any(step.kind == "private_folder" for step in (*around.steps, *around.on_nodes)), "private_folder"),
        (True, "environment"),
        (checks_programs(plan), "programs"),
        (plan.secrets, "secrets"),
        (notify, "notify_start"),
        (container.exports, "image_variables"),
        (plan.strategy is not None and plan.strategy.file, "strategy"),
        (slurm and not plan.role, "rendezvous_slurm"),
        (plan.step.ordered, "node_order"),
        (slurm and resolve != "address_by_name", resolve),
        (not plan.roles, "rendezvous_role" if plan.role else "rendezvous"),
        (around.inside or ranks == "within", "within"),
        (check is not None and check.inside, "node_check_image"),
        (without_srun, "hand_over"),
        (check is not None and copies is not None, "copies"),
        (without_srun, f"node_check_{_check_step(plan)}"),
        (check is not None, "node_check"),
        (plan.continuation.guarded, "guard"),
        (plan.watch is not None, "watch"),
        (checkpoint is not None and plan.continuation.followed and plan.scheduler != "ssh", "follow_checkpoints"),
        (plan.stripe, "stripe"),
        (ranks == "each_rank", "each_rank"),
        (plan.binding, "bind_ranks"),
        (launcher.reads_hostfile and not plan.roles, "hostfile_slots" if plan.hosts else "hostfile"),
        (plan.elastic or (plan.role and launcher.tasks == "program"), "await_child"),
        (not plan.roles, " ".join(launcher.parts)),
        (plan.role_gpus is not None and plan.scheduler != "local", "role_gpus"),
        (around.on_nodes, f"prepare_{plan.scheduler}"),
        (stage is not None and stage.unsupported, "stage_unsupported"),
        (staged or has_data, f"stage_{'slurm' if slurm else 'local'} stage"),
        (has_data, "stage_data"),
        (staged, "stage_software"),
        (check is None and copies is not None, "copies"),
        (True, " ".join(_step(plan, launcher))),
        (staged or has_data, "unstage"),
        (plan.recovery.successor, "end_successor"),
        (True, "exit"),
    )
    return tuple(name for wanted, names in rows if wanted for name in names.split())


def checks_programs(plan: LaunchPlan) -> bool:
    """Whether each node checks that it has the interpreter: what is in an image is the same everywhere."""
    return (
        plan.scheduler != "local"
        and plan.nodes > 1
        and plan.container is None
        and plan.step.kind not in ("once", "roles")
    )


def _step(plan: LaunchPlan, launcher: LauncherDescriptor) -> tuple[str, ...]:
    handed = () if _checks_without_srun(plan) else ("hand_over",)
    held = _held(plan)
    match plan.step.kind:
        case "srun":
            beats = ("heartbeat", "release_next") if plan.heartbeat else ()
            given_up = ("given_up",) if plan.chooses_nodes else ()
            return *beats, "node", "step_srun", *given_up, "end_elastic" if plan.elastic else "end_srun"
        case "roles":
            return ("step_roles",)
        case "local":
            return "node", "end_together", "step_local"
        case "once":
            return *(("hand_back",) if _checks_without_srun(plan) else ()), *held, "step_once"
        case "ssh":
            slots = ("end_together", "each_slot") if launcher.logs_by_rank else ()
            return *handed, *held, "await_notes", "run_noted", *slots, "step_ssh"
        case "pdsh":
            return *handed, *held, "await_notes", "step_pdsh"
        case _:
            return *handed, "await_notes", "run_noted", "step_mpi"


def _held(plan: LaunchPlan) -> tuple[str, ...]:
    """Leases that no part of the job on the host itself keeps."""
    if not plan.hosts or plan.shared_hosts or plan.copies is not None:
        return ()
    held = (*(("hold_spares",) if plan.spares else ()), *(("hold_hosts",) if plan.step.kind != "ssh" else ()))
    return ("hold", *held) if held else ()


def _checks_without_srun(plan: LaunchPlan) -> bool:
    """Whether the nodes get their environment before the node check, which ibrun or ssh starts."""
    return plan.node_check is not None and _check_step(plan) != "srun"


def _check_step(plan: LaunchPlan) -> str:
    """What starts the node check."""
    return "ssh" if plan.scheduler == "ssh" else "ibrun" if plan.step.kind == "ibrun" else "srun"
