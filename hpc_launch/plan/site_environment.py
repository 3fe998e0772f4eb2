"""The site's set-up steps and variables that apply to a job, by scope and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from hpc_launch.job.document import KeyPath, Origin
from hpc_launch.job.shell_text import Text, plain
from hpc_launch.job.units import format_time
from hpc_launch.plan.environment import fabric_variables, latest
from hpc_launch.plan.job_size import condition_facts, profile_parts
from hpc_launch.plan.launch_plan import SiteSettings, SiteStep, Variable
from hpc_launch.plan.plan_draft import JobSize, PlanDraft, ValueFiller
from hpc_launch.sites.folders import CACHE_VARIABLES
from hpc_launch.sites.job_settings import ConditionFacts, PreludeStep, Setting, holds
from hpc_launch.sites.provenance import third_party_note

_ULIMITS = {"stack": "-s", "locked-memory": "-l", "open-files": "-n", "processes": "-u", "core": "-c"}
_MODULES: dict[str, tuple[str, ...]] = {
    "purge": ("module", "purge"),
    "force-purge": ("module", "--force", "purge"),
    "reset": ("module", "reset"),
}


SiteVariables = dict[str, list[Variable]]
"""The variables of the site profile, by scope: job, node, rank and container."""


def site_variables(filler: ValueFiller, size: JobSize) -> SiteVariables:
    """Variables of the fabric and the caches, then of each setting whose condition holds; later ones win."""
    about = condition_facts(filler, size)
    scopes: SiteVariables = {name: [] for name in ("job", "node", "rank", "container")}
    scopes["job"] += [*fabric_variables(filler, size, about), *_of_caches(filler, about)]
    own = filler.resolved.job.env
    for path, setting in _held(filler, size, "env"):
        if not holds(setting.when, about):
            continue
        for name in setting.drop:
            for scope in scopes.values():
                scope[:] = [variable for variable in scope if variable.name != name]
        if setting.scope == "container" and about.runtime is None:
            continue
        for variable in _variables(filler, setting, path):
            if setting.scope == "job" or variable.name not in own:
                scopes[setting.scope].append(variable)
    return {name: latest(found) for name, found in scopes.items()}


def site_settings(
    filler: ValueFiller,
    size: JobSize,
    variables: SiteVariables,
    job: Sequence[Variable],
    inner: Sequence[SiteStep],
) -> SiteSettings:
    """All steps of the site around the training, and inside the container those of the job after them (`inner`).

    `job` are the variables of the training in the job's shell.
    """
    about = condition_facts(filler, size)
    steps: dict[str, list[SiteStep]] = {"job": [], "nodes": [], "container": []}
    for path, step in _held(filler, size, "prelude"):
        if holds(step.when, about) and not (step.where == "container" and about.runtime is None):
            steps[step.where] += _step(filler, step, path)
    steps["nodes"] += _folders_of_caches(filler, about, "node")
    steps["job"] += _folders_of_caches(filler, about, "job")
    for parent, origin in {one.cache: one.origin for one in job if one.cache}.items():
        held = ((one.name, one.value) for one in job if one.cache == parent and one.value)
        words = ((f"{name}={str(value[-1]).rpartition('/')[2]}",) for name, value in held)
        steps["job"].append(SiteStep("private_folder", origin, (parent or ("",), *words), may_fail=True))
    inside = steps["container"]
    changed = any(step.kind in ("source", "raw") for step in inside)
    if about.runtime is not None:
        # Not every runtime passes the host's variables into the container.
        inside += [_as_step(variable) for variable in variables["node"]]
    inside += [_as_step(variable) for variable in variables["container"]]
    if changed:
        # A file sourced inside may overwrite variables of the job; set them again.
        inside += [_as_step(one) for one in job if one.name in filler.resolved.job.env]
    return SiteSettings(
        login_shell=filler.resolved.site.login_shell,
        steps=tuple(steps["job"]),
        on_nodes=tuple(steps["nodes"]),
        inside=(*inside, *inner),
        # PropagateResourceLimits of slurm.conf(5) may keep the limits of the job's shell from its steps.
        node_steps=(
            *(replace(step, may_fail=True) for step in steps["job"] if step.words[:1] == (("ulimit",),)),
            *map(_as_step, variables["node"]),
        ),
        rank_variables=tuple(variables["rank"]),
        notes=tuple(_notes(filler, size)),
    )


_NOT_IN_SCRIPTS = {("detect",), ("billing",), ("pytorch",)}
"""Groups of facts that no setting of a script comes from."""


def _notes(filler: ValueFiller, size: JobSize) -> Iterator[str]:
    """Lines for the head of the script: facts that are not from the centre, and what a user should know."""
    for file, known in filler.resolved.provenance.items():
        name = file.rsplit("/", 1)[-1]
        for group, fact in known.groups.items():
            if fact.grade == "C" and group[:1] not in _NOT_IN_SCRIPTS:
                what = ".".join(map(str, group)) or "all other facts"
                about = "; ".join(filter(None, [third_party_note(fact), fact.source, fact.note]))
                yield f"{name}: {what}: {about}"
    queue, preempted = size.queue, size.queue.preemption
    if queue.access:
        yield f"Queue {size.queue_name}: {queue.access}"
    if preempted is not None:
        how = [
            f"{format_time(preempted.grace)} after {preempted.signal or 'a signal'}" if preempted.grace else "",
            f"not within the first {format_time(preempted.exempt)}" if preempted.exempt else "",
            "Slurm requeues it" if preempted.requeued else "",
        ]
        yield f"Queue {size.queue_name} may preempt this job: {'; '.join(filter(None, how)) or 'at any time'}."
    said = repr(filler.resolved.job)
    for key, folder in filler.resolved.site.paths.items():
        if folder.purge_days is not None and f"${{paths.{key}}}" in said:
            path = filler.resolved.names.get(f"paths.{key}", folder.path)
            yield f"Files in {path} are purged after {folder.purge_days} days."


def _held(draft: PlanDraft, size: JobSize, key: Literal["env", "prelude"]) -> Iterator[tuple[KeyPath, Any]]:
    """The settings or steps of the site and each part of it that applies, with their paths. A queue has no steps."""
    parts: dict[KeyPath, Any] = {(): draft.resolved.site, **profile_parts(draft, size)}
    for part, holder in parts.items():
        yield from (((*part, key, at), one) for at, one in enumerate(getattr(holder, key, ())))


def _variables(filler: ValueFiller, setting: Setting | PreludeStep, path: KeyPath) -> Iterator[Variable]:
    for name in setting.unset or ():
        yield Variable(name, None, _origin(filler, setting, (*path, "unset")))
    for key, values in (("set", setting.set or {}), ("prepend", setting.prepend or {})):
        for name, value in values.items():
            here = (*path, key, name)
            text = None if value is None else filler.site_text(value, here)
            yield Variable(name, text, _origin(filler, setting, here), before=key == "prepend")


def _origin(filler: ValueFiller, said: Setting | PreludeStep, path: KeyPath) -> Origin:
    """The place, the grade of its source, and the site's reason."""
    origin = filler.resolved.site_origin(*path)
    note = third_party_note(said.fact) or ("" if said.fact is not None and said.fact.grade else origin.fact)
    return Origin(origin.layer, origin.place, origin.note, note, said.why)


def _step(filler: ValueFiller, step: PreludeStep, path: KeyPath) -> Iterator[SiteStep]:
    origin = _origin(filler, step, path)

    def command(*parts: Text | str, may_fail: bool = False) -> SiteStep:
        texts = tuple((part,) if isinstance(part, str) else part for part in parts)
        return SiteStep("command", origin, texts, may_fail=may_fail)

    def text(value: object, *key: str | int) -> Text:
        return filler.site_text(value, (*path, *key))

    if step.modules is not None:
        yield command(*_MODULES[step.modules], may_fail=True)
    for verb, names in (("use", step.module_use), ("unload", step.module_unload), ("load", step.module_load)):
        for at, name in enumerate(names or ()):
            yield command("module", verb, text(name, f"module_{verb}", at))
    if step.source is not None:
        yield SiteStep("source", origin, (text(step.source, "source"),))
    for variable in _variables(filler, step, path):
        yield _as_step(variable)
    for at, folder in enumerate(step.mkdir or ()):
        yield command("mkdir", "-p", "--", text(folder, "mkdir", at))
    if step.copy is not None:
        target = text(step.copy.to, "copy", "to")
        yield command("mkdir", "-p", "--", target)
        yield command("cp", "-R", "--", text(step.copy.source, "copy", "source"), target)
    for limit, value in (step.ulimit or {}).items():
        yield command("ulimit", _ULIMITS[limit], text(value, "ulimit", limit), may_fail=False)
    if step.raw is not None:
        yield SiteStep("raw", origin, ((step.raw,),))


def _as_step(variable: Variable) -> SiteStep:
    return SiteStep("variable", variable.origin, variable=variable)


def _of_caches(filler: ValueFiller, about: ConditionFacts) -> Iterator[Variable]:
    site, image = filler.resolved.site, filler.resolved.job.container is not None
    mounted = tuple(f"{plain(filler.site_text(bind, ('containers', 'binds')))}/" for bind in site.containers.binds)
    for name, cache in site.caches.items():
        path: KeyPath = ("caches", name, "path")
        if not (holds(cache.when, about) and filler.can_fill(cache.path)):
            continue  # it needs a variable that is not set, or another job
        place, origin = filler.site_text(cache.path, path), filler.resolved.site_origin(*path)
        if cache.default and image and not (plain(place) or "").startswith(mounted):
            continue
        parent = filler.site_text(cache.path.rpartition("/")[0], path) if cache.default else None
        for variable in CACHE_VARIABLES.get(name, (name,)):
            yield Variable(variable, place, origin, default=cache.default, cache=parent)


def _folders_of_caches(filler: ValueFiller, about: ConditionFacts, per: str) -> Iterator[SiteStep]:
    for name, cache in filler.resolved.site.caches.items():
        if cache.per == per and not cache.default and holds(cache.when, about) and filler.can_fill(cache.path):
            folder = filler.site_text(cache.path, ("caches", name, "path"))
            origin = filler.resolved.site_origin("caches", name)
            # Others may make it first, and libraries load code from it.
            yield SiteStep("private_folder", origin, (folder,))
