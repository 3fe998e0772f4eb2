"""Render the script of a job array, which starts the scripts of a sweep's points."""

from __future__ import annotations

from hpc_launch import __version__
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.script.template_environment import template_environment


def render_array(plan: LaunchPlan) -> str:
    """The script of an array whose points all have this plan's Slurm options."""
    return template_environment().get_template("array.sh.j2").render(plan=plan, version=__version__)
