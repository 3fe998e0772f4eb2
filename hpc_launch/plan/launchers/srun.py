"""srun, or the step that the site uses instead, as the launcher: it starts each process itself."""

from __future__ import annotations

from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, options_only

DESCRIPTOR = LauncherDescriptor(
    name="srun",
    tasks="process",
    plan=options_only,
    needs_step=True,
    rank_variables="within",
)
