"""The pages of the shipped profiles: each exists, is current, and has what a reader of the script must know."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate_sites import HERE, pages
from tests.sites.shipped import SLURM

PAGES = pages()


def test_pages_are_in_step() -> None:
    stale = [path.name for path, text in PAGES.items() if not path.exists() or path.read_text("utf-8") != text]
    assert not stale, "run `make docs`"
    assert {path.stem for path in HERE.glob("*.md")} == {"README", *SLURM}


@pytest.mark.parametrize("site", SLURM)
def test_a_page_tells_sources_and_differences(site: str) -> None:
    text = PAGES[HERE / f"{site}.md"]
    assert "## Sources" in text
    assert "## Not known" in text
    held = text.partition("## Compared with the site's own example\n")[2].partition("\n## ")[0]
    assert "Example: " in held
    assert "\n- " in held


def test_the_overview_has_a_row_for_each_site() -> None:
    rows = [line for line in PAGES[HERE / "README.md"].splitlines() if line.startswith("| [")]
    assert [Path(row.partition("(")[2].partition(")")[0]).stem for row in rows] == sorted(SLURM)
