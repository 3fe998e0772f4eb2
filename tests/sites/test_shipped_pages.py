"""The pages of the shipped profiles: each exists, is current, and has what a reader of the script must know."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from docs.generate_sites import HERE, pages, shipped_profiles
from tests.sites.shipped import SLURM

made = cache(pages)


def test_pages_are_in_step() -> None:
    stale = [path.name for path, text in made().items() if not path.exists() or path.read_text("utf-8") != text]
    assert not stale, "run `make docs`"
    assert {path.stem for path in HERE.glob("*.md")} == {"README", *SLURM}


@pytest.mark.parametrize("site", SLURM)
def test_a_page_tells_sources_and_differences(site: str) -> None:
    text = made()[HERE / f"{site}.md"]
    assert "## Sources" in text
    assert "## Not known" in text
    held = text.partition("## Compared with the site's own example\n")[2].partition("\n## ")[0]
    assert "Example: " in held
    assert "\n- " in held


def test_the_overview_has_a_row_for_each_site() -> None:
    rows = [line for line in made()[HERE / "README.md"].splitlines() if line.startswith("| [")]
    assert [Path(row.partition("(")[2].partition(")")[0]).stem for row in rows] == sorted(SLURM)


FACTS = (
    "smallest allocation",
    "billing unit",
    "minimum nodes of a job",
    "GPUs per user",
    "purge of files",
    "internet access of compute nodes",
    "PyTorch of the centre",
    "detection of login nodes",
)


@pytest.mark.parametrize("site", SLURM)
def test_a_page_shows_the_same_facts_known_or_not_and_where_known_their_source(site: str) -> None:
    table = made()[HERE / f"{site}.md"].partition("\n## Facts\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == list(FACTS)
    assert all((value == "not known") == (source == "") for _, value, source in rows)


def test_a_default_of_hpc_launch_is_not_shown_as_a_fact() -> None:
    assert "- runtime: not known; `apptainer` is tried" in made()[HERE / "kempner.md"]
    assert "Not known if required." in made()[HERE / "alex.md"]
    assert "- runtime: `singularity`" in made()[HERE / "jean-zay.md"]


def test_a_page_tells_what_a_system_in_service_replaces() -> None:
    head = made()[HERE / "horeka.md"].partition("\n## ")[0]
    assert "HoreKa 2 takes the place of HoreKa, which is switched off on 2026-12-01" in head


def test_there_are_75_systems_or_more() -> None:
    assert len([one for one in shipped_profiles() if one.profile.kind == "system"]) >= 75
