"""Sources of a profile's facts: where a value comes from, its quality and its age."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.sites.fact_sources import Fact


class Provenance(Struct, frozen=True):
    """Sources named in one file, by group of facts; () is the default."""

    groups: Mapping[KeyPath, Fact]

    def fact(self, path: KeyPath) -> Fact:
        """Source of the value at `path`. Each field is taken from the longest group that has it."""
        groups_on_path = [self.groups[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.groups]

        def first(field: str) -> str | None:
            return next((value for fact in groups_on_path if (value := getattr(fact, field))), None)

        return Fact(source=first("source"), as_of=first("as_of"), grade=first("grade"), note=first("note") or "")  # type: ignore[arg-type]

    def warning(self, path: KeyPath) -> str:
        """Note for readers of the script if a fact is not from the centre itself."""
        fact = self.fact(path)
        return third_party_note(fact) if fact.grade == "C" else ""


def third_party_note(fact: Fact) -> str:
    """Note for a fact of grade C."""
    return f"third party{f', {fact.as_of}' if fact.as_of else ''}"


def provenance(document: Document) -> Provenance:
    """Sources named in a file. Wrong types are ignored here, because the type check reports them."""
    data = document.data
    groups: dict[KeyPath, Fact] = {(): _fact(data)}
    facts = data.get("facts")
    for group, fact in facts.items() if isinstance(facts, dict) else ():
        groups[tuple(str(group).split("."))] = Fact(source=fact) if isinstance(fact, str) else _fact(fact)
    return Provenance(groups)


def _fact(data: object) -> Fact:
    def text(key: str) -> str | None:
        value = data.get(key) if isinstance(data, dict) else None
        return value if isinstance(value, str) else None

    return Fact(source=text("source"), as_of=text("as_of"), grade=text("grade"), note=text("note") or "")  # type: ignore[arg-type]


def unknown_groups(document: Document, known: frozenset[str]) -> Iterator[Finding]:
    """HL312 for groups that are not part of the profile."""
    facts = document.data.get("facts")
    for group in facts if isinstance(facts, dict) else ():
        if str(group).split(".")[0] not in known:
            place: Place | None = document.key_places.get(("facts", group))
            yield Finding(
                FindingCode.UNSOURCED_FACTS,
                f"`{group}` is not a key of the profile",
                place,
                "use a key of the profile, with dots for nested keys",
            )
