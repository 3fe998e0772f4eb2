"""What a driver did for a run, for the verbs to report."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class DriverOutcome(Struct, frozen=True):
    """What a driver did or found. `words`: the text for the user."""

    kind: Literal["nothing", "ended", "waiting", "submitted"]
    words: str = ""

    @property
    def continues(self) -> bool:
        """Whether the run continues."""
        return self.kind in ("waiting", "submitted")


NOTHING = DriverOutcome("nothing")
