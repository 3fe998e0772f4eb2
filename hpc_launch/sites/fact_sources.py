"""Where the facts of a profile come from, how good and how old they are, and whether the system still is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

DAY_PATTERN = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
Day = Annotated[str, Meta(title="a day as YYYY-MM-DD", pattern=DAY_PATTERN)]
Grade = Literal["A", "B", "C"]


class Fact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a group of facts, or one of them, comes from."""

    source: Annotated[
        str | None,
        Meta(description="A page, or a file of a repository at a commit; `the system itself` if asked there."),
    ] = None
    as_of: Annotated[Day | None, Meta(description="The day of the source: when it was written, or last read.")] = None
    grade: Annotated[
        Grade | None,
        Meta(description="`A` the centre's or vendor's own, `B` theirs in part or dated, `C` a third party's."),
    ] = None
    note: Annotated[str, Meta(description="What a reader should know beside it.")] = ""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """The source alone."""
        return {"source": value} if isinstance(value, str) else None


class Lifecycle(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the system is in service."""

    state: Annotated[
        Literal["pilot", "active", "retiring", "retired"],
        Meta(description="Jobs for a `retired` system are refused; of a `retiring` one a warning tells."),
    ] = "active"
    retires_on: Annotated[Day | None, Meta(description="The day of the end, where it is known.")] = None
    successor: Annotated[str | None, Meta(description="The profile of the system that comes after.")] = None
    note: Annotated[str, Meta(description="What a user should know about it.")] = ""

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """The state alone."""
        return {"state": value} if isinstance(value, str) else None


class Published(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site's own example of such a job, and why the script of hpc-launch is another one."""

    example: Annotated[str, Meta(description="Where it stands: a page, or a file of a repository at a commit.")]
    differences: Annotated[list[str], Meta(description="What differs, each with the reason.")] = []
