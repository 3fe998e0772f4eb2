"""Set-up for a job in a container: modules for the runtime, and typed steps inside it before the launcher.

The order on a node: the site's prelude, `environment`, the site's `containers.modules`, `container.modules`, the
variables; then, inside, the site's steps with `where: container`, `container.prelude`, the launcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.container import ACTIONS, ContainerStep
from hpc_launch.job.document import KeyPath
from hpc_launch.plan.environment_steps import check_variable_name, module_steps
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.plan_parts import Prelude, SiteStep, Variable


def runtime_modules(filler: ValueFiller) -> tuple[Prelude, ...]:
    """The modules that the container runtime needs: the site's, then the job's."""
    container, resolved = filler.resolved.job.container, filler.resolved
    if container is None:
        return ()
    steps: list[Prelude] = []
    path: KeyPath
    for at, name in enumerate(resolved.site.containers.modules):
        path = ("containers", "modules", at)
        steps.append(Prelude("module", filler.site_text(name, path), resolved.site_origin(*path)))
    return (*steps, *module_steps(filler, container.modules, ("container", "modules")))


def inner_steps(filler: ValueFiller, variables: Sequence[Variable]) -> tuple[SiteStep, ...]:
    """`container.prelude` as steps, with a finding for each step that does not have exactly one action.

    `variables` are those of the job's shell: a file that is sourced inside may set what the job's `env` sets, whose
    word is the last, unless a step of the prelude itself sets it.
    """
    container, resolved = filler.resolved.job.container, filler.resolved
    if container is None:
        return ()
    _check_environment(filler)
    steps: list[SiteStep] = []
    for at, step in enumerate(container.prelude):
        path: KeyPath = ("container", "prelude", at)
        actions = [action for action in ACTIONS if getattr(step, action) is not None]
        if len(actions) != 1:
            has = " and ".join(f"`{one}`" for one in actions) or "none"
            message = f"a step needs exactly one action; this one has {has}"
            filler.fault(FindingCode.INVALID_CONTAINER_STEP, message, path, f"use one of {', '.join(ACTIONS)}")
        steps += _step(filler, step, path)
    if any(step.kind == "source" for step in steps):
        own = {step.variable.name for step in steps if step.variable is not None}
        again = (one for one in variables if one.name in resolved.job.env and one.name not in own)
        steps += [SiteStep("variable", one.origin, variable=one) for one in again]
    return tuple(steps)


def _step(filler: ValueFiller, step: ContainerStep, path: KeyPath) -> Iterator[SiteStep]:
    resolved = filler.resolved
    if step.source is not None:
        here = (*path, "source")
        yield SiteStep("source", resolved.origin(*here), (filler.text(step.source, here),))
    if step.venv is not None:
        here = (*path, "venv")
        yield SiteStep("source", resolved.origin(*here), ((*filler.text(step.venv, here), "/bin/activate"),))
    values = [("set", name, value) for name, value in (step.set or {}).items()]
    values += [("prepend", name, value) for name, value in (step.prepend or {}).items()]
    for key, name, value in values:
        here = (*path, key, name)
        if check_variable_name(filler, name, here):
            text = None if value is None else filler.text(value, here)
            variable = Variable(name, text, resolved.origin(*here), before=key == "prepend")
            yield SiteStep("variable", variable.origin, variable=variable)
    for at, name in enumerate(step.unset or ()):
        here = (*path, "unset", at)
        if check_variable_name(filler, name, here):
            variable = Variable(name, None, resolved.origin(*here))
            yield SiteStep("variable", variable.origin, variable=variable)


def _check_environment(filler: ValueFiller) -> None:
    """HL474: an environment activated on the host has no effect on the PATH inside the image."""
    environment, resolved = filler.resolved.job.environment, filler.resolved
    for key in ("conda", "venv"):
        if getattr(environment, key) is not None and resolved.origin("environment", key).layer != "default":
            message = f"`environment.{key}` is activated outside the image and has no effect inside it"
            hint = "remove it, or activate one inside: `container: {prelude: [{venv: FOLDER}]}`"
            filler.fault(FindingCode.ENVIRONMENT_OUTSIDE_CONTAINER, message, ("environment", key), hint, "warning")
