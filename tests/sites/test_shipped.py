"""The profiles that are shipped: each can be read, has its sources, and holds no raw line and nobody's account."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from hpc_launch.base.installed import shipped
from hpc_launch.job.yaml_source import parse_document, read_document
from hpc_launch.site_tools.check_profile import missing_sources, outdated_facts
from hpc_launch.site_tools.show_profiles import basis
from hpc_launch.sites.provenance import provenance

PROFILES = sorted(shipped("site_configs").rglob("*.yaml"))
NAMES = [str(path.relative_to(shipped("site_configs"))) for path in PROFILES]


@pytest.mark.parametrize("path", PROFILES, ids=NAMES)
def test_a_shipped_profile_says_where_its_facts_are_from(path: Path) -> None:
    document, faults = read_document(path)
    assert document is not None
    assert [*faults, *missing_sources(document)] == []
    assert not [path for path in document.places if path[-1:] == ("raw",)]
    assert document.data["name"] == path.stem


def test_the_longest_group_counts_and_inherits_from_the_shorter() -> None:
    document, _ = parse_document(
        "source: s\ngrade: A\nfacts:\n  queues: {grade: B, as_of: 2026-01-01}\n  queues.gpu: me\n", "x"
    )
    assert document is not None
    known = provenance(document)
    fact = known.fact(("queues", "gpu", "limits", 0))
    assert (fact.source, fact.grade, fact.as_of) == ("me", "B", "2026-01-01")
    assert known.fact(("queues", "cpu")).source == "s"
    assert known.fact(("env",)).grade == "A"


def test_the_weakest_source_of_the_request_decides_what_a_profile_rests_on() -> None:
    def rests_on(*texts: str) -> str | None:
        documents = [parse_document(text, "x")[0] for text in texts]
        return basis([one for one in documents if one is not None])

    own = "grade: A\nqueues: {}\npaths: {}\n"
    assert rests_on(own) == "centre"
    assert rests_on(f"{own}facts: {{paths: {{grade: C}}}}\n") == "centre", "no part of the request"
    assert rests_on(f"{own}facts: {{queues.gpu.limits: {{grade: C}}}}\n") == "others"
    assert rests_on("grade: C\nfabric: {}\n", own) == "others", "a base"
    assert rests_on("grade: C\nfabric: {}\n", f"{own}status: verified\n") == "tried"
    assert rests_on("queues: {}\n") is None


def test_facts_grow_old_by_what_they_are_about() -> None:
    text = "as_of: 2026-01-01\nnode_classes: {}\nqueues: {}\nenv: []\n"
    document, _ = parse_document(text, "x.yaml")
    assert document is not None

    def old(day: str) -> list[str]:
        return [one.message.split("`")[1] for one in outdated_facts(document, dt.date.fromisoformat(day))]

    assert old("2026-06-01") == []
    assert old("2026-08-01") == ["env"]
    assert old("2026-12-01") == ["queues", "env"]
    assert old("2029-12-01") == ["node_classes", "queues", "env"]
    assert all(one.severity == "warning" for one in outdated_facts(document, dt.date(2030, 1, 1)))
