"""What the templates must know of a step: how many tasks it starts, and how a node finds its rank and address there."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import descriptor

BY_NOTES = ("pdsh", "ibrun", "mpirun")
"""Steps whose own exit code is not enough: each command leaves a note of its end."""


class Step(Struct, frozen=True):
    """Texts are bash, to be expanded on the node."""

    tasks_per_node: int
    node_rank: str
    node_address: str


def step_of(plan: LaunchPlan) -> Step:
    """The step of a plan."""
    kind = plan.step.kind
    tasks = descriptor(plan.launcher).tasks_per_node(plan.processes_per_node)
    needs_address = plan.rendezvous == "c10d" and kind != "local"
    return Step(
        tasks_per_node=tasks,
        node_rank="$SLURM_NODEID" if kind == "srun" else "$HPC_LAUNCH_NODE",
        node_address=_address(plan) if needs_address else "127.0.0.1",
    )


def _address(plan: LaunchPlan) -> str:
    """The address of the node itself, by the rule that holds for the first one."""
    name = "${SLURMD_NODENAME}" if plan.step.kind == "srun" else "${hosts[HPC_LAUNCH_NODE]}"
    if plan.master.interface is not None:
        return f"$(own_address {plan.master.interface})"
    if plan.master.resolve != "name":
        return f'$(address_of "{name}{plan.master.suffix}")'
    return name + plan.master.suffix
