"""What a launcher is told beside the program: its rendezvous, restarts and options, as far as its version has them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.plan.plan_draft import PlanDraft

ELASTIC_RESTARTS = 3
NUMA_BINDING = (2, 9)
"""The torch release that brought `--numa-binding` (torch/distributed/run.py of each release)."""


class LauncherPlan(Struct, frozen=True):
    """How the launcher starts the processes. `options` are in its own spelling."""

    rendezvous: Literal["static", "c10d"]
    max_restarts: int
    options: tuple[str, ...]


def launcher(draft: PlanDraft) -> LauncherPlan:
    """The launcher's settings, with a finding for each that it cannot do."""
    job = draft.resolved.job
    asked = job.launcher
    if asked.name != "deepspeed":
        _belongs(draft, "multinode", "deepspeed")
    if asked.name != "torchrun":
        for key in ("rendezvous", "max_restarts", "numa_binding"):
            _belongs(draft, key, "torchrun")
        if job.elastic:
            message = f"{asked.name} cannot go on with fewer nodes"
            draft.fault(
                FindingCode.LAUNCHER_NOT_ELASTIC,
                message,
                ("nodes",),
                "give one number of nodes, or use `launcher: torchrun`",
            )
        return LauncherPlan("static", 0, tuple(asked.options))
    again = job.elastic or bool(asked.max_restarts)
    if again and asked.rendezvous == "static":
        # Measured with torch 2.13: agents of a static rendezvous do not coordinate a restart; one side hangs.
        message = "a static rendezvous can neither start processes again nor go on with fewer nodes"
        draft.fault(
            FindingCode.STATIC_RENDEZVOUS,
            message,
            ("launcher", "rendezvous"),
            "use `rendezvous: c10d`, or leave it out",
        )
    restarts = asked.max_restarts if asked.max_restarts is not None else ELASTIC_RESTARTS if job.elastic else 0
    return LauncherPlan(
        rendezvous=asked.rendezvous or ("c10d" if again else "static"),
        max_restarts=restarts,
        options=(*_numa(draft), *asked.options),
    )


def _belongs(draft: PlanDraft, key: str, owner: str) -> None:
    asked = draft.resolved.job.launcher
    if getattr(asked, key) is not None:
        message = f"`{key}` is an option of {owner}, not of {asked.name}"
        draft.fault(
            FindingCode.OPTION_OF_OTHER_LAUNCHER, message, ("launcher", key), f"take it out, or use `name: {owner}`"
        )


def _numa(draft: PlanDraft) -> tuple[str, ...]:
    binding, torch = draft.resolved.job.launcher.numa_binding, draft.resolved.torch
    if binding is None:
        return ()
    if torch is not None and torch < NUMA_BINDING:
        message = f"torchrun {torch[0]}.{torch[1]} has no --numa-binding; it came with 2.9"
        draft.fault(
            FindingCode.NUMA_BINDING_UNSUPPORTED,
            message,
            ("launcher", "numa_binding"),
            "take it out, or use a newer PyTorch",
        )
    if torch is None:
        message = "`numa_binding` needs PyTorch 2.9, and which one the job will use is not known"
        draft.fault(
            FindingCode.NUMA_BINDING_UNSUPPORTED,
            message,
            ("launcher", "numa_binding"),
            "declare it: `environment: {torch: '2.13'}`",
            "warning",
        )
    return (f"--numa-binding={binding}",)
