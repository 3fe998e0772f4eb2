"""The origin of every value: keys of the merged job, facts of the site in use, lines of the script."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from hpc_launch.drive.prepare import Ready
from hpc_launch.spec.origin import Origin
from hpc_launch.spec.text import Text, Var, visible


class Explained(Struct, frozen=True):
    """One value. `kind` is `job`, `directive`, `variable` or `rule`."""

    kind: str
    key: str
    value: str
    origin: Origin

    @property
    def bare(self) -> str:
        """The key without the dashes of a directive."""
        return self.key.removeprefix("--")

    def __str__(self) -> str:
        return f"{self.key} = {visible(self.value)}   {self.origin}"

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
            "note": self.origin.note or None,
        }


def explain(ready: Ready) -> list[Explained]:
    """Keys first, then the script's directives and variables."""
    merged = ready.loaded.resolved.merged
    lines = []
    for path, origin in merged.origins.items():
        value: Any = merged.data
        for key in path:
            value = value[key]
        if not isinstance(value, dict | list) or not value:
            lines.append(Explained("job", ".".join(map(str, path)), str(value), origin))
    for directive in ready.plan.directives:
        lines.append(Explained("directive", f"--{directive.option}", directive.value or "(given)", directive.origin))
    for step in ready.plan.prelude:
        lines.append(Explained("rule", step.kind, _spelt(step.argument), step.origin))
    for variable in ready.plan.variables:
        value = "(unset)" if variable.value is None else _spelt(variable.value)
        lines.append(Explained("variable", f"${variable.name}", value, variable.origin))
    return lines


def _spelt(text: Text) -> str:
    return "".join(f"${part.name}" if isinstance(part, Var) else part for part in text)
