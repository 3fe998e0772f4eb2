"""The sources that a profile's file names for its facts: which one a value is from, how good and how old it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.sites.fact_sources import Fact
from hpc_launch.spec.document import Document, KeyPath


class Provenance(Struct, frozen=True):
    """The sources of one file: by group of facts, () for the rest."""

    groups: Mapping[KeyPath, Fact]

    def fact(self, path: KeyPath) -> Fact:
        """The source of the value at `path`: each of its fields from the longest group that has it."""
        known = [self.groups[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.groups]

        def first(field: str) -> str | None:
            return next((value for fact in known if (value := getattr(fact, field))), None)

        return Fact(source=first("source"), as_of=first("as_of"), grade=first("grade"), note=first("note") or "")  # type: ignore[arg-type]

    def warning(self, path: KeyPath) -> str:
        """What a reader of the script must know: that a fact is not the centre's own."""
        fact = self.fact(path)
        return third_party(fact) if fact.grade == "C" else ""


def third_party(fact: Fact) -> str:
    """Words for a fact of grade C."""
    return f"third party{f', {fact.as_of}' if fact.as_of else ''}"


def provenance(document: Document) -> Provenance:
    """The sources as a file names them; what is of a wrong type is left to the check of its types."""
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
    """HL312 for a group that is nothing of the profile."""
    facts = document.data.get("facts")
    for group in facts if isinstance(facts, dict) else ():
        if str(group).split(".")[0] not in known:
            place: Place | None = document.key_places.get(("facts", group))
            yield Finding(
                FindingCode.UNSOURCED_FACTS,
                f"`{group}` is no group of facts",
                place,
                "a key of the profile, with dots inside",
            )
