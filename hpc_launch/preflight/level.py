"""The result of one level of checks."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, to_builtins


class Level(Struct, frozen=True):
    """One level of checks and its result."""

    name: str
    state: Literal["ok", "failed", "not checked"]
    lines: tuple[str, ...]
    """What was found, one sentence each."""
    run: str | None = None
    """The run that it started."""
    values: dict[str, Any] | None = None
    """What it measured."""

    def as_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = to_builtins(self)
        return answer
