"""Sources of a profile's facts: where a value comes from, its quality and its age, and the system's lifecycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.job.type_hints import short_form

DAY_PATTERN = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
Day = Annotated[str, Meta(title="a day as YYYY-MM-DD", pattern=DAY_PATTERN)]
Grade = Literal["A", "B", "C"]


class Fact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of a group of facts, or of one fact."""

    source: str | None = None
    """A page, or a file of a repository at a commit. `the system itself` for measured facts."""
    as_of: Day | None = None
    """Date on which the source was written or last read."""
    grade: Grade | None = None
    """`A` from the centre or vendor, `B` partly or outdated from them, `C` from a third party."""
    note: str = ""
    """Additional information for readers."""

    __short_forms__ = short_form("The source alone.", {str: "source"})


EntrySource = Annotated[
    Fact | None, Meta(description="Source of this entry, if it differs from the source of its group.")
]


class Lifecycle(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the system is in service."""

    state: Literal["pilot", "active", "retiring", "retired"] = "active"
    """Jobs for a `retired` system are rejected; a `retiring` system causes a warning."""
    retires_on: Day | None = None
    """End of service, if known."""
    successor: str | None = None
    """Profile of the successor system."""
    note: str = ""
    """Information for users."""

    __short_forms__ = short_form("The state alone.", {str: "state"})


class Published(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site's own example of such a job, and how hpc-launch's script differs from it."""

    example: str
    """Location of the example: a page, or a file of a repository at a commit."""
    differences: list[str] = []
    """Differences, each with its reason."""


class Provenance(Struct, frozen=True):
    """Sources named in one file, by group of facts; () is the default."""

    groups: Mapping[KeyPath, Fact]

    def fact(self, path: KeyPath) -> Fact:
        """Source of the value at `path`. Each field is taken from the longest group that has it."""
        found: dict[str, str] = {}
        for end in range(len(path) + 1):
            if (fact := self.groups.get(path[:end])) is not None:
                found |= {name: value for name, value in asdict(fact).items() if value}
        return Fact(**found)  # type: ignore[arg-type]


def third_party_note(fact: Fact | None) -> str:
    """Note for readers of the script if a fact is not from the centre itself: if it has the grade C."""
    return f"third party{f', {fact.as_of}' if fact.as_of else ''}" if fact is not None and fact.grade == "C" else ""


def provenance(document: Document) -> Provenance:
    """Sources named in a file. Wrong types are ignored here, because the type check reports them."""
    data = document.data
    groups: dict[KeyPath, Fact] = {(): _fact(data)}
    facts = data.get("facts")
    for group, fact in facts.items() if isinstance(facts, dict) else ():
        groups[tuple(str(group).split("."))] = Fact(source=fact) if isinstance(fact, str) else _fact(fact)
    return Provenance(groups)


def _fact(data: object) -> Fact:
    found = data if isinstance(data, dict) else {}
    return Fact(**{name: found[name] for name in Fact.__struct_fields__ if isinstance(found.get(name), str)})


def unknown_groups(document: Document, known: frozenset[str]) -> Iterator[Finding]:
    """HL312 for groups that are not part of the profile."""
    facts, hint = document.data.get("facts"), "use a key of the profile, with dots for nested keys"
    for group in facts if isinstance(facts, dict) else ():
        if str(group).split(".")[0] not in known:
            message, place = f"`{group}` is not a key of the profile", document.key_places.get(("facts", group))
            yield Finding(FindingCode.UNSOURCED_FACTS, message, place, hint)
