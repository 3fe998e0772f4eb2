"""Explain where each value comes from: keys of the merged job, values of the site profile, and parts of the script."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from hpc_launch.job.document import KeyPath, Origin
from hpc_launch.job.merge import Merged
from hpc_launch.job.shell_text import readable, visible
from hpc_launch.plan.launch_plan import Variable
from hpc_launch.prepare.prepare import PreparedJob


class ExplainedValue(Struct, frozen=True):
    """A value with its origin."""

    kind: str
    """`job`, `site`, `directive`, `step`, `variable`, `rule`, `file` or `argument`."""
    key: str
    value: str
    origin: Origin

    @property
    def name(self) -> str:
        """The key without the leading dashes of a directive."""
        return self.key.removeprefix("--")

    def __str__(self) -> str:
        return visible(f"{self.key} = {self.value}   {self.origin}")

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of `explain --json`."""
        place = self.origin.place
        return {
            "kind": self.kind,
            "key": self.key,
            "value": self.value,
            "layer": self.origin.layer,
            "file": place.file if place else None,
            "line": place.line if place else None,
            "note": "; ".join(filter(None, (self.origin.note, self.origin.fact, self.origin.why))) or None,
        }


def explain(job: PreparedJob) -> list[ExplainedValue]:
    """List the keys of the merged job, then the directives, steps, variables and arguments of the script."""
    plan, settings = job.plan, job.plan.around
    lines = [line for _, line in values("job", job.loaded.resolved.merged)]
    for directive in plan.directives:
        value = directive.value or "(set)"
        lines.append(ExplainedValue("directive", f"--{directive.option}", value, directive.origin))
    for where, steps in (
        ("prelude", settings.steps),
        ("nodes", settings.on_nodes),
        ("node", settings.node_steps),
        ("container", settings.inside),
    ):
        for index, step in enumerate(steps):
            text = " ".join(map(readable, step.words)) if step.variable is None else _assignment(step.variable)
            lines.append(ExplainedValue("step", f"{where}.{index}", text, step.origin))
    if plan.binding is not None:
        lines.append(ExplainedValue("step", plan.binding.key, plan.binding.value or "", plan.binding.origin))
    for variable in settings.rank_variables:
        value = f"{_assignment(variable)} (in each process)"
        lines.append(ExplainedValue("variable", f"${variable.name}", value, variable.origin))
    for setup in plan.prelude:
        lines.append(ExplainedValue("rule", setup.kind, readable(setup.argument), setup.origin))
    for variable in plan.variables:
        value = "(unset)" if variable.value is None else readable(variable.value)
        lines.append(ExplainedValue("variable", f"${variable.name}", value, variable.origin))
    if plan.strategy is not None:
        for kind, entry in plan.strategy.explained():
            value = "(set)" if entry.value is None else entry.value
            lines.append(ExplainedValue(kind, entry.key, value, entry.origin))
    return lines


def explain_site(job: PreparedJob) -> list[ExplainedValue]:
    """List the values of the site profile under `site.`, with their layers and sources."""
    resolved = job.loaded.resolved
    return [
        ExplainedValue("site", f"site.{line.key}", line.value, resolved.site_origin(*path))
        for path, line in values("site", resolved.profile)
    ]


def values(kind: str, merged: Merged) -> list[tuple[KeyPath, ExplainedValue]]:
    """List the leaf values with their paths; an empty list or mapping is a leaf too."""
    leaves = ((path, _at(merged, path), origin) for path, origin in merged.origins.items())
    return [
        (path, ExplainedValue(kind, ".".join(map(str, path)), str(value), origin))
        for path, value, origin in leaves
        if not isinstance(value, dict | list) or not value
    ]


def _at(merged: Merged, path: KeyPath) -> Any:
    value: Any = merged.data
    for key in path:
        value = value[key]
    return value


def _assignment(variable: Variable) -> str:
    if variable.value is None:
        return f"unset {variable.name}"
    return f"{variable.name}={readable(variable.value)}{f':${variable.name}' if variable.before else ''}"
