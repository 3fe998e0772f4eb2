"""The origin of every value: keys of the merged job, facts of the site in use, lines of the script."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from hpc_launch.drive.prepare import Ready
from hpc_launch.plan.launch_plan import SiteSettings, SiteStep, Variable
from hpc_launch.spec.document import KeyPath
from hpc_launch.spec.merge import Merged
from hpc_launch.spec.origin import Origin
from hpc_launch.spec.shell_text import Text, Var, visible


class Explained(Struct, frozen=True):
    """One value. `kind` is `job`, `site`, `directive`, `variable`, `rule`, `file` or `argument`."""

    kind: str
    key: str
    value: str
    origin: Origin

    @property
    def bare(self) -> str:
        """The key without the dashes of a directive."""
        return self.key.removeprefix("--")

    def __str__(self) -> str:
        return visible(f"{self.key} = {self.value}   {self.origin}")

    def as_json(self) -> dict[str, Any]:
        """For `explain --json`."""
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


def explain(ready: Ready) -> list[Explained]:
    """Keys first, then the script's directives and variables."""
    lines = [line for _, line in values("job", ready.loaded.resolved.merged)]
    for directive in ready.plan.directives:
        lines.append(Explained("directive", f"--{directive.option}", directive.value or "(given)", directive.origin))
    around = ready.plan.around
    for where, steps in _steps_of(around):
        for at, step in enumerate(steps):
            said = " ".join(_spelt(word) for word in step.words) if step.variable is None else _set(step.variable)
            lines.append(Explained("step", f"{where}.{at}", said, step.origin))
    for one in around.rank_variables:
        lines.append(Explained("variable", f"${one.name}", f"{_set(one)} (in each process)", one.origin))
    for setup in ready.plan.prelude:
        lines.append(Explained("rule", setup.kind, _spelt(setup.argument), setup.origin))
    for variable in ready.plan.variables:
        value = "(unset)" if variable.value is None else _spelt(variable.value)
        lines.append(Explained("variable", f"${variable.name}", value, variable.origin))
    if ready.plan.strategy is not None:
        for kind, entry in ready.plan.strategy.explained():
            value = "(given)" if entry.value is None else entry.value
            lines.append(Explained(kind, entry.key, value, entry.origin))
    return lines


def explain_site(ready: Ready) -> list[Explained]:
    """The values of the site's profile, under `site.`, with their layers and sources."""
    resolved = ready.loaded.resolved
    return [
        Explained("site", f"site.{line.key}", line.value, resolved.site_origin(*path))
        for path, line in values("site", resolved.profile)
    ]


def values(kind: str, merged: Merged) -> list[tuple[KeyPath, Explained]]:
    """The values that hold no others, each with its path."""
    return [
        (path, Explained(kind, ".".join(map(str, path)), str(_at(merged, path)), merged.origins[path]))
        for path in _paths(merged)
    ]


def _paths(merged: Merged) -> list[KeyPath]:
    """The values that hold no others."""
    return [path for path in merged.origins if not isinstance(value := _at(merged, path), dict | list) or not value]


def _at(merged: Merged, path: KeyPath) -> Any:
    value: Any = merged.data
    for key in path:
        value = value[key]
    return value


def _steps_of(around: SiteSettings) -> tuple[tuple[str, tuple[SiteStep, ...]], ...]:
    """The site's steps by where they are done."""
    return (
        ("prelude", around.steps),
        ("nodes", around.on_nodes),
        ("node", around.node_steps),
        ("container", around.inside),
    )


def _set(variable: Variable) -> str:
    if variable.value is None:
        return f"unset {variable.name}"
    return f"{variable.name}={_spelt(variable.value)}{f':${variable.name}' if variable.before else ''}"


def _spelt(text: Text) -> str:
    return "".join(f"${part.name}" if isinstance(part, Var) else part for part in text)
