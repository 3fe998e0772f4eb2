"""The navigation of the documentation site."""

from __future__ import annotations

import re

from docs.build_site import REPOSITORY


def test_every_page_is_in_the_navigation() -> None:
    """The pages of the shipped profiles are listed on a page of their own."""
    listed = set(re.findall(r"[\w/-]+\.md", (REPOSITORY / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]))
    docs = {str(page.relative_to(REPOSITORY / "docs")) for page in (REPOSITORY / "docs").rglob("*.md")}
    docs |= {f"repository/benchmarks/{page.name}" for page in (REPOSITORY / "benchmarks").glob("*.md")}
    assert listed == {page for page in docs if not page.startswith("reference/sites/")} | {"reference/sites/README.md"}
