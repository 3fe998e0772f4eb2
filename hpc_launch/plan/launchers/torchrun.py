"""torchrun, started on each node: static rendezvous, or c10d for restarts and an elastic number of nodes."""

from __future__ import annotations

from hpc_launch.base.findings import FindingCode
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, LauncherPlan
from hpc_launch.plan.plan_draft import PlanDraft

ELASTIC_RESTARTS = 3
NUMA_BINDING = (2, 9)
"""The torch release that added `--numa-binding` (torch/distributed/run.py of each release)."""


def _plan(draft: PlanDraft) -> LauncherPlan:
    job = draft.resolved.job
    asked = job.launcher
    again = job.elastic or bool(asked.max_restarts)
    if again and asked.rendezvous == "static":
        # Measured with torch 2.13: agents of a static rendezvous do not coordinate a restart; one side hangs.
        message = "a static rendezvous can neither restart processes nor continue with fewer nodes"
        hint = "use `rendezvous: c10d`, or remove it"
        draft.fault(FindingCode.STATIC_RENDEZVOUS, message, ("launcher", "rendezvous"), hint)
    restarts = asked.max_restarts if asked.max_restarts is not None else ELASTIC_RESTARTS if job.elastic else 0
    return LauncherPlan(
        rendezvous=asked.rendezvous or ("c10d" if again else "static"),
        max_restarts=restarts,
        options=(*_numa(draft), *asked.options),
    )


def _numa(draft: PlanDraft) -> tuple[str, ...]:
    binding, torch = draft.resolved.job.launcher.numa_binding, draft.resolved.torch
    if binding is None or binding == "off":
        return ()
    if torch is not None and torch < NUMA_BINDING:
        message = f"torchrun {torch[0]}.{torch[1]} has no --numa-binding, which was added in 2.9"
        hint = "remove it, or use a newer PyTorch"
        draft.fault(FindingCode.NUMA_BINDING_UNSUPPORTED, message, ("launcher", "numa_binding"), hint)
    if torch is None:
        message = "`numa_binding` requires PyTorch 2.9, and the version that the job uses is unknown"
        hint = "state it: `environment: {torch: '2.13'}`"
        draft.fault(FindingCode.NUMA_BINDING_UNSUPPORTED, message, ("launcher", "numa_binding"), hint, "warning")
    return (f"--numa-binding={binding}",)


DESCRIPTOR = LauncherDescriptor(
    name="torchrun",
    tasks="node",
    plan=_plan,
    own_keys=frozenset({"rendezvous", "max_restarts", "numa_binding"}),
    elastic=True,
    in_image=True,
    process_group=True,
    prefixes_ranks=True,
    rank_variables="each_rank",
)
