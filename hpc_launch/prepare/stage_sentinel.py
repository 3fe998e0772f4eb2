"""Give the jobs of a pipeline's stage a sentinel, also where the site has no queue for them."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from hpc_launch.job.units import format_time
from hpc_launch.plan.driver_plan import SENTINEL_S
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.runs.submitting.run_store import PreparedAttempt


def with_sentinel(prepared: PreparedAttempt, plan: LaunchPlan) -> PreparedAttempt:
    """The attempt with a sentinel job, in its own queue where the site names none.

    Others wait for the run though it may fail or its node may die, and a job cannot know whether its own failure is
    final.
    """
    recovery = prepared.plan.recovery
    if prepared.scheduler != "slurm" or recovery is None or recovery.sentinel is not None:
        return prepared
    values = {one.option: one.value for one in plan.directives}
    options = tuple(f"--{name}={values[name]}" for name in ("partition", "qos", "account") if values.get(name))
    recovery = structs.replace(recovery, sentinel=(*options, f"--time={format_time(SENTINEL_S)}"))
    return replace(prepared, plan=structs.replace(prepared.plan, recovery=recovery))
