"""What a driver did for a run, as the verbs see it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class DriverOutcome(Struct, frozen=True):
    """What a driver did or found. `words` is for the person who looks on."""

    kind: Literal["nothing", "ended", "waiting", "submitted"]
    words: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether the run has no end yet."""
        return self.kind in ("waiting", "submitted")


NOTHING = DriverOutcome("nothing")
