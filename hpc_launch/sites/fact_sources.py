"""Sources of a profile's facts, their quality and age, and the system's lifecycle."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

DAY_PATTERN = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
Day = Annotated[str, Meta(title="a day as YYYY-MM-DD", pattern=DAY_PATTERN)]
Grade = Literal["A", "B", "C"]


class Fact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of a group of facts, or of one fact."""

    source: Annotated[
        str | None,
        Meta(description="A page, or a file of a repository at a commit. `the system itself` for measured facts."),
    ] = None
    as_of: Annotated[Day | None, Meta(description="Date on which the source was written or last read.")] = None
    grade: Annotated[
        Grade | None,
        Meta(description="`A` from the centre or vendor, `B` partly or outdated from them, `C` from a third party."),
    ] = None
    note: Annotated[str, Meta(description="Additional information for readers.")] = ""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """The source alone."""
        return {"source": value} if isinstance(value, str) else None


EntrySource = Annotated[
    Fact | None, Meta(description="Source of this entry, if it differs from the source of its group.")
]


class Lifecycle(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the system is in service."""

    state: Annotated[
        Literal["pilot", "active", "retiring", "retired"],
        Meta(description="Jobs for a `retired` system are rejected; a `retiring` system causes a warning."),
    ] = "active"
    retires_on: Annotated[Day | None, Meta(description="End of service, if known.")] = None
    successor: Annotated[str | None, Meta(description="Profile of the successor system.")] = None
    note: Annotated[str, Meta(description="Information for users.")] = ""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """The state alone."""
        return {"state": value} if isinstance(value, str) else None


class Published(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site's own example of such a job, and how hpc-launch's script differs from it."""

    example: Annotated[str, Meta(description="Location of the example: a page, or a file of a repository at a commit.")]
    differences: Annotated[list[str], Meta(description="Differences, each with its reason.")] = []
