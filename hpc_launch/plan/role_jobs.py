"""The roles of a job: the job that each of them is, with its nodes, GPUs and ports, and the plan of all of them.

The plan of a job with roles has one of each role, and one of the job that holds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.job.document import KeyPath, rule
from hpc_launch.job.group_keys import OWN_KEYS, ROLE_NAME, Ready, Role
from hpc_launch.job.job import JobSpec
from hpc_launch.job.launcher import Launcher
from hpc_launch.job.merge import Layer, merge, sublayer
from hpc_launch.job.reader import read
from hpc_launch.job.shell_text import Var
from hpc_launch.job.units import counted
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.launch_plan import LaunchPlan, RoleGpus, RolePlan, SiteStep, StepPlan, Variable, WatchPlan
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, descriptor
from hpc_launch.plan.plan_draft import PlanDraft, ValueFiller
from hpc_launch.plan.recorded_parts import BatchPlan, RetryPlan
from hpc_launch.sites.network import JobHost
from hpc_launch.sites.resolved import Resolved

_OF_JOB_ONLY = frozenset("roles sweep nodes gpus gpus_per_node data spares notify trackers drill retry".split())


class RolePlace(Struct, frozen=True):
    """Where a role runs: the first node and the number of nodes of each replica, by their numbers in the job."""

    nodes: tuple[tuple[int, int], ...]
    gpus: int | None
    """GPUs on each of its nodes; None: all of them."""
    first_gpu: int = 0
    """The first of them, where others run on the same node."""


_OF_ROLES_ONLY = ("roles", "script", "module", "args", "env", "launcher", "strategy", "container", "environment")


def with_job_of_roles(resolved: Resolved, main: JobSpec) -> Resolved:
    """The job whose one program starts the roles: without what only they need, and with what the role that ends it
    (`main`) says about checkpoints and progress."""
    plain = JobSpec(name=resolved.job.name)
    reset = {key: getattr(plain, key) for key in _OF_ROLES_ONLY}
    followed = {"checkpoint": main.checkpoint, "progress": main.progress}
    return replace(resolved, job=replace(resolved.job, **reset, **followed, command=["true"]))


def main_role(roles: Mapping[str, Role]) -> str:
    """The role whose progress is the job's: the first that ends it, one with checkpoints or progress before others."""
    ends = [name for name, role in roles.items() if role.ends] or list(roles)
    return next((name for name in ends if roles[name].checkpoint or roles[name].progress), ends[0])


def role_resolved(resolved: Resolved, name: str, place: RolePlace | None, findings: list[Finding]) -> Resolved | None:
    """A role as a job: the shared keys, its own over them. None with findings if it cannot be read."""
    merged = resolved.merged
    part = sublayer("job", merged, "roles", name)
    own = {key: value for key, value in part.data.items() if key not in OWN_KEYS}
    replaced = {"script", "module", "command", "args"} if {"script", "module", "command"} & own.keys() else set()
    tracked = {"trackers"} if name == main_role(resolved.job.roles) else set[str]()
    shared = {key: value for key, value in merged.data.items() if key not in (_OF_JOB_ONLY - tracked) | replaced}
    whole = Layer(shared, merged.places, merged.key_places, merged.written, name="job", origins=merged.origins)
    result = merge([whole, replace(part, data=own, operators={})])
    job, faults = read(result, JobSpec)
    findings += [fault for fault in faults if fault not in findings]
    if job is None:
        return None
    if job.command is not None and "launcher" not in result.data:
        job = replace(job, launcher=Launcher(name="none"), processes_per_node=1)
    if place is not None:
        first, count = place.nodes[0]
        gpus = place.gpus if place.gpus is not None else resolved.job.gpus_per_node
        job = replace(job, nodes=count, gpus_per_node=gpus, gpus=None)
        resolved = replace(resolved, hosts=resolved.hosts[first : first + count])
    return replace(resolved, job=job, merged=result, role=name, late={**resolved.late, **_names(resolved.job)})


def _names(job: JobSpec) -> dict[str, tuple[Var]]:
    """`${role.NAME.url}` and others, as variables of the role's environment."""
    names = {}
    for name, role in job.roles.items():
        for key in ("url", "host", "port", *(f"port.{port}" for port in role.ports)):
            names[f"role.{name}.{key}"] = (Var(f"ROLE_{name}_{key}".replace(".", "_").upper()),)
    return names


def role_places(job: JobSpec) -> dict[str, RolePlace]:
    """The nodes of each role, in the order of the file; those that do not fit have none."""
    alone = {name: role for name, role in job.roles.items() if role.beside is None}
    counts = {name: role.nodes for name, role in alone.items()}
    taken = sum(count * alone[name].replicas for name, count in counts.items() if isinstance(count, int))
    rest = [name for name, count in counts.items() if count == "rest"]
    places, first = dict[str, RolePlace](), 0
    for name, role in alone.items():
        count = role.nodes if isinstance(role.nodes, int) else (job.max_nodes - taken) // len(rest) // role.replicas
        if count < 1 or first + count * role.replicas > job.max_nodes:
            continue
        places[name] = RolePlace(tuple((first + count * at, count) for at in range(role.replicas)), role.gpus)
        first += count * role.replicas
    used: dict[str, int] = {name: role.gpus or 0 for name, role in alone.items()}
    for name, role in job.roles.items():
        if role.beside not in places or name in places:
            continue
        of, count = places[role.beside], role.nodes if isinstance(role.nodes, int) else 1
        nodes = tuple((of.nodes[0][0], count) for _ in range(role.replicas))
        places[name] = RolePlace(nodes, role.gpus or 0, used.get(role.beside, 0))
        used[role.beside] = used.get(role.beside, 0) + (role.gpus or 0)
    return places


def check_roles(
    draft: PlanDraft, jobs: Mapping[str, JobSpec], places: Mapping[str, RolePlace], gpus_per_node: int
) -> None:
    """HL220 for everything that is wrong with the roles together. `jobs`: each of them as a job."""
    job = draft.resolved.job
    for path, message, hint in (*_wrong_alone(job, jobs), *_wrong_together(job, places, gpus_per_node)):
        draft.fault(FindingCode.INVALID_ROLE, message, path, hint)


_Fault = tuple[KeyPath, str, str]


def _wrong_alone(job: JobSpec, jobs: Mapping[str, JobSpec]) -> Iterator[_Fault]:
    for name, role in job.roles.items():
        path: KeyPath = ("roles", name)
        if not re.fullmatch(ROLE_NAME.strip("^$"), name) or len(name) > 32:
            yield path, f"`{name}` cannot be the name of a role", "use lower-case letters, digits and `_`"
        for key in ("beside", "after"):
            for wanted in role.awaited if key == "after" else [role.beside] if role.beside else []:
                if wanted not in job.roles or wanted == name:
                    yield (*path, key), f"there is no other role `{wanted}`", f"the roles: {', '.join(job.roles)}"
        if role.beside is not None and role.beside in job.roles and job.roles[role.beside].beside is not None:
            yield (*path, "beside"), f"`{role.beside}` is itself beside another role", "name that role"
        if role.beside is not None and role.nodes == "rest":
            yield (*path, "nodes"), "a role beside another has no nodes of its own", "remove `nodes`"
        ready = role.ready
        if ready is not None and sum((ready.http is not None, ready.tcp, ready.log is not None, ready.ray)) != 1:
            hint = "for example `ready: {http: /health}`"
            yield (*path, "ready"), "`ready` needs one of http, tcp, log and ray", hint
        try:
            re.compile((ready is not None and ready.log) or "")
        except re.error as error:
            yield (*path, "ready", "log"), f"`log` is not a valid regular expression: {error}", "correct it"
        if role.restart and role.ends:
            yield (*path, "restart"), f"`{name}` ends the job, so it cannot be restarted", "use `retry`"
        if "node" in (jobs[name].environment.stage, getattr(jobs[name].container, "stage", None)):
            message, hint = f"`stage: node`: the software of `{name}` cannot be copied to the nodes", "use `stage: off`"
            yield path, message, hint
        launcher = jobs[name].launcher.name
        if role.restart and descriptor(launcher).process_group:
            message = f"`{name}` forms a process group with {launcher}, whose members cannot join again"
            yield (*path, "restart"), message, "remove `restart`: the whole job is tried again"


def _wrong_together(job: JobSpec, places: Mapping[str, RolePlace], gpus_per_node: int) -> Iterator[_Fault]:
    if not any(role.ends for role in job.roles.values()):
        yield ("roles",), "no role ends the job", "add `ends: job` to the training"
    if job.elastic or job.spares:
        key = "nodes" if job.elastic else "spares"
        yield (key,), f"a job with roles has a fixed number of nodes, without {key}", "use a fixed number of nodes"
    if job.data is not None:
        yield ("data",), "`data` is not for jobs with roles", "remove it, and name the data in the arguments"
    graph = {name: [one for one in role.awaited if one in job.roles] for name, role in job.roles.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = " → ".join(reversed(error.args[1]))
        yield ("roles", error.args[1][0], "after"), f"the roles wait for each other: {cycle}", "remove one of them"
    missing = [name for name in job.roles if name not in places and job.roles[name].beside is None]
    alone = (role for role in job.roles.values() if role.beside is None)
    needed = sum(role.replicas * (role.nodes if isinstance(role.nodes, int) else 1) for role in alone)
    has_rest = any(role.nodes == "rest" for role in job.roles.values())
    if missing or (needed != job.max_nodes and not has_rest):
        message = f"the roles need {counted(needed, 'node')}, the job has {job.max_nodes}"
        yield ("nodes",), message, f"set `nodes: {needed}`, or `nodes: rest` in a role"
    for name, place in places.items():
        others = [one for one, role in job.roles.items() if role.beside == name and role.gpus]
        if others and place.gpus is None and gpus_per_node:
            message = f"`{name}` has all GPUs of its nodes, and `{others[0]}` runs beside it"
            yield ("roles", name), message, f"give `{name}` a number of GPUs: `gpus: {gpus_per_node - 1}`"
        elif place.first_gpu + (place.gpus or 0) > gpus_per_node:
            message = f"the roles on the nodes of `{name}` use more than their {gpus_per_node} GPUs"
            yield ("roles", name, "gpus"), message, "request fewer GPUs, or give one of them nodes of its own"


def role_record(name: str, role: Role, place: RolePlace, launcher: LauncherDescriptor) -> dict[str, Any]:
    """What agent/roles.py needs to know about a role. `names`: of its replicas, and of their folders."""
    ready = role.ready or (Ready(ray=True) if launcher.named_ports else None)
    given = to_builtins(ready) if ready is not None else {}
    return {
        "names": [name] if role.replicas == 1 else [f"{name}.{at}" for at in range(role.replicas)],
        "nodes": place.nodes,
        "ports": [*role.ports, *launcher.named_ports],
        "port_range": launcher.port_range,
        "ready": {key: value for key, value in given.items() if value},
        "after": role.awaited,
        "ends": role.ends == "job",
        "restart": role.restart,
        "grace": role.grace,
    }


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
