"""The plan of a job with roles: one of each role, and one of the job that holds them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from hpc_launch.base.findings import Finding
from hpc_launch.job.document import rule
from hpc_launch.job.roles import Role
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.launch_plan import LaunchPlan, RoleGpus, RolePlan, SiteStep, StepPlan, Variable, WatchPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.recorded_parts import BatchPlan, RetryPlan
from hpc_launch.plan.role_jobs import (
    RolePlace,
    check_roles,
    main_role,
    role_places,
    role_record,
    role_resolved,
    with_job_of_roles,
)
from hpc_launch.sites.network import JobHost
from hpc_launch.sites.resolved import Resolved

BESIDE_OTHERS = ("--overlap", "--mem=0")
"""A step gets all GPUs and memory of its nodes, and the next one would wait for them (srun(1), --overlap)."""


def build_roles(
    resolved: Resolved, build: Callable[[Resolved], tuple[LaunchPlan | None, list[Finding]]]
) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan, or None if it cannot be built, and every finding. `build` is that of a job of one program."""
    findings: list[Finding] = []
    filler, job, places = ValueFiller(resolved, findings), resolved.job, role_places(resolved.job)
    known = ((name, role_resolved(resolved, name, places.get(name), findings)) for name in job.roles)
    jobs = {name: own for name, own in known if own is not None}
    if findings:
        return None, findings
    size, main = job_size(filler), main_role(job.roles)
    gpus_per_node = size.gpus_per_node if size is not None else 0
    check_roles(filler, {name: own.job for name, own in jobs.items()}, places, gpus_per_node)
    if findings:
        return None, findings
    outer, faults = build(with_job_of_roles(resolved, jobs[main].job))
    findings += faults
    roles: list[RolePlan] = []
    for name in sorted(jobs, key=lambda one: one != main):
        plan, faults = build(jobs[name])
        findings += [fault for fault in faults if fault not in findings]
        if plan is None or outer is None:
            continue
        if name == main and outer.recovery.batch is None:
            outer = replace(outer, recovery=replace(outer.recovery, batch=_batch_of(name, plan.recovery.batch)))
        role, place, gpus = job.roles[name], places[name], outer.gpus_per_node
        plan = replace(
            _within(plan, outer, role),
            hosts=_hosts(outer.hosts, plan.hosts, place),
            role=name,
            role_gpus=None if place.gpus is None or not gpus else RoleGpus(place.first_gpu, gpus),
        )
        roles.append(RolePlan(name, plan, role_record(name, role, place, descriptor(plan.launcher))))
    if outer is None or len(roles) < len(jobs):
        return None, findings
    held = replace(
        outer,
        roles=tuple(roles),
        step=StepPlan("roles"),
        binding=None,
        variables=(),
        prelude=(),
        watch=None,
        code=next((one.plan.code for one in roles if one.plan.code is not None), None),
    )
    return held, findings


def _batch_of(name: str, batch: BatchPlan | None) -> BatchPlan | None:
    """Where the job file has the batch size of a role."""
    keys = {at: getattr(batch, at, None) or "" for at in ("micro_key", "accumulation_key")}
    own = {at: f"roles.{name}.{key}" for at, key in keys.items() if key.startswith("args.")}
    return replace(batch, **own) if batch is not None else None


def _hosts(hosts: tuple[JobHost, ...], own: tuple[JobHost, ...], place: RolePlace) -> tuple[JobHost, ...]:
    """All hosts of the job, those of the role with as many processes as it has there."""
    slots = {first + at: host.slots for first, _ in place.nodes for at, host in enumerate(own)}
    return tuple(replace(host, slots=slots.get(at, host.slots)) for at, host in enumerate(hosts))


def _within(plan: LaunchPlan, outer: LaunchPlan, role: Role) -> LaunchPlan:
    """The plan of a role without what the job does for all of them. A server may be silent for as long as it likes."""
    step = plan.step
    if step.kind == "srun":
        step = replace(step, options=(*BESIDE_OTHERS, *step.options))
    nothing = rule("`unset` of the role")  # on the node: srun sets its variables there
    unset = (SiteStep("variable", nothing, variable=Variable(name, None, nothing)) for name in role.unset)
    watch = plan.watch
    if watch is not None and role.ends is None:
        watch = WatchPlan(0, 0, watch.sample_every_s, phases=False)
    return replace(
        plan,
        name=outer.name,
        step=step,
        shared_hosts=True,
        watch=watch,
        notify=None,
        node_check=None,
        stage=None,
        requeue=False,
        recovery=RetryPlan(),
        around=replace(plan.around, on_nodes=(), node_steps=(*plan.around.node_steps, *unset)),
    )
