"""Values that a file or a command line gives for a model, read with their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import scalar
from hpc_launch.job.model import LARGEST_SIZE, MOST_EXPERTS, MOST_LAYERS
from hpc_launch.job.reader_messages import describe
from hpc_launch.job.shell_text import visible


class GivenValues(Struct, frozen=True):
    """Values by name. `whole` is the place of all, for what is missing."""

    values: Mapping[str, Any]
    places: Mapping[str, Place]
    whole: Place | None


class ValueReader:
    """Takes sizes from given values and collects what is wrong with them.

    A size has several names if programs name it differently; the first one given counts. A faulty size is read as 1.
    """

    def __init__(self, given: GivenValues) -> None:
        self.given = given
        self.findings: list[Finding] = []

    def layers(self, *names: str) -> int:
        """A number of layers."""
        return self.size(*names, most=MOST_LAYERS)

    def experts(self, *names: str, default: int | None = None) -> int:
        """A number of experts."""
        return self.size(*names, default=default, most=MOST_EXPERTS)

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A size; without a default it must be given."""
        name = self.name_of(*names)
        if name is None:
            if default is None:
                hint = f"add it: a whole number between {least} and {most}"
                self.report(FindingCode.MISSING_KEY, f"`{names[0]}` is missing", None, hint)
            return least if default is None else default
        value = self.given.values[name]
        value = scalar(value) if isinstance(value, str) else value
        if isinstance(value, bool) or not isinstance(value, int):
            message = f"`{name}` must be a whole number, not {describe(self.given.values[name])}"
            self.report(FindingCode.WRONG_TYPE, message, name, f"write a number between {least} and {most}")
        elif not least <= value <= most:
            shown = value if abs(value) < 10**20 else "a number with more than 20 digits"
            message = f"`{name}` must be between {least} and {most}, not {shown}"
            self.report(FindingCode.INVALID_VALUE, message, name, "correct the number")
        else:
            return value
        return least

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        name = self.name_of(*names)
        if name is None:
            return default
        value = self.given.values[name]
        value = scalar(value) if isinstance(value, str) else value
        if isinstance(value, bool):
            return value
        self.report(
            FindingCode.WRONG_TYPE,
            f"`{name}` must be true or false, not {describe(self.given.values[name])}",
            name,
            "write true or false",
        )
        return default

    def text(self, *names: str) -> str | None:
        """Text, or None if it is not given."""
        name = self.name_of(*names)
        value = None if name is None else self.given.values[name]
        return value if isinstance(value, str) else None

    def name_of(self, *names: str) -> str | None:
        """The first of the names that has a value."""
        return next((name for name in names if self.given.values.get(name) is not None), None)

    def report(self, code: FindingCode, message: str, name: str | None, hint: str) -> None:
        """Add an error at the value of this name, or about the whole."""
        place = self.given.whole if name is None else self.given.places.get(name, self.given.whole)
        self.findings.append(Finding(code, visible(message), place, hint))
