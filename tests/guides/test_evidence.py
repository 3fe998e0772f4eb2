"""The tables of docs/evidence/guides: each row names tests that exist, and says what in it is not real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.requirements import REPOSITORY

PAGES = sorted((REPOSITORY / "docs" / "evidence" / "guides").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_row_names_tests_that_exist(page: Path) -> None:
    rows = [row for row in re.findall(r"^\|(.*)\|$", page.read_text("utf-8"), re.MULTILINE) if "---" not in row]
    rows = [row for row in rows if not row.startswith((" by hand ", " behaviour "))]  # the head of a table
    assert len(rows) > 5
    for row in rows:
        named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", row.split("|")[-1])
        assert named, row
        for file, name in named:
            assert f"\ndef {name}(" in (REPOSITORY / file).read_text("utf-8"), f"{file}::{name}"
