"""The static part of a script: the files of `slurm_templates/parts/` that it runs, and `runtime.sh`, which has all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache

from hpc_launch.base.installed import shipped
from hpc_launch.images.runtimes.wrap_command import CommandWrapper
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor

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


def static_part(names: Iterable[str]) -> str:
    """The parts with these names, in place of `runtime.sh`."""
    return "".join(map(part, names))


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
    return tuple(_part_names(plan, launcher, container))


def checks_programs(plan: LaunchPlan) -> bool:
    """Whether each node checks that it has the interpreter: what is in an image is the same everywhere."""
    return plan.scheduler != "local" and plan.nodes > 1 and plan.container is None and plan.step.kind != "once"


def _part_names(plan: LaunchPlan, launcher: LauncherDescriptor, container: CommandWrapper) -> Iterator[str]:
    slurm = plan.scheduler == "slurm"
    yield from ("messages", f"job_{plan.scheduler}", "in_place", "attempt")
    yield from ("requeue", "continue_here") if slurm else ()
    yield from ("expedite",) if plan.expedited else ()
    yield "claim"
    yield from ("spares", "survivor") if plan.chooses_nodes else ()
    yield from ("records", "signals", "variables", "resume" if plan.continuation.checkpoint else "fresh")
    yield from ("notify",) if plan.notify is not None else ()
    yield from ("private_folder",) if _has_private_folders(plan) else ()
    yield "environment"
    yield from ("programs",) if checks_programs(plan) else ()
    yield from ("secrets",) if plan.secrets else ()
    yield from ("notify_start",) if plan.notify is not None else ()
    yield from ("image_variables",) if container.exports else ()
    yield from ("strategy",) if plan.strategy is not None and plan.strategy.file else ()
    yield from _rendezvous(plan)
    yield from _within(plan, launcher)
    if plan.node_check is not None:
        yield from ("node_check_image",) if plan.node_check.inside else ()
        yield from ("hand_over",) if _checks_without_srun(plan) else ()
        yield from ("copies",) if plan.copies is not None else ()
        yield from (f"node_check_{_check_step(plan)}",) if _checks_without_srun(plan) else ()
        yield "node_check"
    yield from ("guard",) if plan.continuation.guarded else ()
    yield from ("watch",) if plan.watch is not None else ()
    followed = plan.continuation.checkpoint is not None and plan.continuation.checkpoint.followed
    yield from ("follow_checkpoints",) if followed and plan.scheduler != "ssh" else ()
    yield from _on_nodes(plan, launcher)
    yield from (f"prepare_{plan.scheduler}",) if plan.around.on_nodes else ()
    yield from _staging(plan)
    yield from ("copies",) if plan.copies is not None and plan.node_check is None else ()
    yield from _step(plan, launcher)
    yield from ("unstage",) if plan.stage is not None and not plan.stage.unsupported else ()
    yield from ("end_successor",) if plan.recovery.successor else ()
    yield "exit"


def _has_private_folders(plan: LaunchPlan) -> bool:
    return any(step.kind == "private_folder" for step in (*plan.around.steps, *plan.around.on_nodes))


def _rendezvous(plan: LaunchPlan) -> Iterator[str]:
    if plan.scheduler == "slurm":
        yield "rendezvous_slurm"
        if plan.master.interface is not None:
            yield "address_of_interface"
        elif plan.master.resolve != "name":
            yield f"address_by_{plan.master.resolve}"
    yield "rendezvous"


def _within(plan: LaunchPlan, launcher: LauncherDescriptor) -> tuple[str, ...]:
    ranks = plan.around.rank_variables and launcher.rank_variables == "within"
    return ("within",) if plan.around.inside or ranks else ()


def _on_nodes(plan: LaunchPlan, launcher: LauncherDescriptor) -> Iterator[str]:
    if plan.around.rank_variables and launcher.rank_variables == "each_rank":
        yield "each_rank"
    if launcher.reads_hostfile:
        yield "hostfile_slots" if plan.hosts else "hostfile"
    if plan.elastic:
        yield "await_child"
    yield from launcher.parts


def _staging(plan: LaunchPlan) -> tuple[str, ...]:
    if plan.stage is None:
        return ()
    if plan.stage.unsupported:
        return ("stage_unsupported",)
    return "stage_slurm" if plan.scheduler == "slurm" else "stage_local", "stage"


def _step(plan: LaunchPlan, launcher: LauncherDescriptor) -> tuple[str, ...]:
    handed = () if _checks_without_srun(plan) else ("hand_over",)
    held = _held(plan)
    match plan.step.kind:
        case "srun":
            beats = ("heartbeat", "release_next") if plan.heartbeat else ()
            given_up = ("given_up",) if plan.chooses_nodes else ()
            return *beats, "node", "step_srun", *given_up, "end_elastic" if plan.elastic else "end_srun"
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
