"""What the templates must know of a step: how many tasks it starts, and how a node finds its rank and address there."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.plan.launch_plan import LaunchPlan

BY_NOTES = {"pdsh": 2, "ibrun": 10, "mpirun": 10}
"""Steps whose own word on the end is not enough, with the seconds that they get to end the others after a failure."""


class Step(Struct, frozen=True):
    """Texts are bash, to be expanded on the node."""

    tasks_per_node: int
    node_rank: str
    node_address: str
    functions: str
    """What has to be known on the node beside the launcher's own function."""
    notes: int
    """How many notes are left by those that begin; 0 for a step that tells by itself."""
    grace: int


def step_of(plan: LaunchPlan) -> Step:
    """The step of a plan."""
    kind = plan.step.kind
    each_process = plan.launcher in ("srun", "none")
    tasks = plan.processes_per_node if each_process else 1
    needs_address = plan.rendezvous == "c10d" and kind != "local"
    address, functions = _address(plan) if needs_address else ("127.0.0.1", "")
    return Step(
        tasks_per_node=tasks,
        node_rank="$SLURM_NODEID" if kind == "srun" else "$HPC_LAUNCH_NODE",
        node_address=address,
        functions=" ".join(filter(None, ("on_each_node", functions))),
        notes=plan.nodes * tasks if kind in BY_NOTES else 0,
        grace=BY_NOTES.get(kind, 0),
    )


def _address(plan: LaunchPlan) -> tuple[str, str]:
    """The address of the node itself, by the rule that holds for the first one."""
    name = "${SLURMD_NODENAME}" if plan.step.kind == "srun" else "${hosts[HPC_LAUNCH_NODE]}"
    if plan.master.interface is not None:
        return "$(own_address)", "own_address"
    if plan.master.resolve != "name":
        return f'$(address_of "{name}{plan.master.suffix}")', "address_of"
    return name + plan.master.suffix, ""
