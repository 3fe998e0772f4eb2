"""A list of checks as lines: how it went, what was looked at, what was found; what to do below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_launch.images.compatibility import Check
from hpc_launch.spec.shell_text import visible


def lines(checks: Sequence[Check]) -> Iterator[str]:
    """A line for each check, and its hint where something is to be done."""
    width = max((len(one.name) for one in checks), default=0)
    for one in checks:
        yield f"{one.level:<4}  {one.name:<{width}}  {visible(one.message)}"
        if one.hint and one.level != "ok":
            yield f"{'':<{width + 6}}  hint: {visible(one.hint)}"
