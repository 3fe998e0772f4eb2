"""The pages that set a centre's published example beside our script: what they say of ours is in the script."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from hpc_launch.base.findings import errors
from hpc_launch.plan.build_plan import build
from hpc_launch.script.render import render
from hpc_launch.sites.load_layers import load
from tests.golden.golden_text import golden_text
from tests.sites.shipped import known_surroundings

__all__ = ["known_surroundings"]

DOCS = Path(__file__).parents[2] / "docs"
PUBLISHED = DOCS / "evidence" / "published"
OVERVIEW = PUBLISHED / "README.md"
FOLDERS = {
    "SCRATCH": "/scratch/00001/alice",
    "SCRATCHDIR": "/scratch/abc/alice",
    "CINECA_SCRATCH": "/leonardo_scratch/large/userexternal/alice",
}
"""Variables that systems set on their login nodes."""
SITES = sorted(path.stem for path in PUBLISHED.glob("*.md") if path != OVERVIEW)


@cache
def page(site: str) -> str:
    return (PUBLISHED / f"{site}.md").read_text("utf-8")


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with this head."""
    table = text.partition(f"\n{head}\n|")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def has(script: str, text: str) -> bool:
    """Whether the script has the text, and not only as a part of a longer word."""
    return re.search(rf"(?<![\w/-]){re.escape(text)}(?!(?<=\w)[\w-])", script) is not None


@pytest.fixture
def script(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The script of the page's job file, for a user without files of their own."""
    for name, value in {"XDG_CONFIG_HOME": str(tmp_path), **FOLDERS}.items():
        monkeypatch.setenv(name, value)
    (block,) = re.findall(r'^```yaml title="job.yaml"\n(.*?)^```$', page(site), re.DOTALL | re.MULTILINE)
    job = tmp_path / "job.yaml"
    job.write_text(block, "utf-8")
    plan, findings = build(load(job, site=site, job_folder="/home/alice/project").resolved)
    assert not errors(findings), [str(finding) for finding in findings]
    assert plan is not None
    return golden_text(render(plan))


@pytest.mark.parametrize("site", SITES)
def test_every_line_of_ours_is_in_the_script(site: str, script: str) -> None:
    table = rows(page(site), "| theirs | ours | why |")
    assert len(table) >= 10
    assert all(len(row) == 3 and all(row) for row in table)
    ours = [text for _, cell, _ in table for text in quoted(cell)]
    assert [text for text in ours if not has(script, text)] == []


@pytest.mark.parametrize("site", SITES)
def test_what_is_called_none_is_not_in_the_script(site: str, script: str) -> None:
    table = rows(page(site), "| theirs | ours | why |")
    absent = [text for theirs, ours, _ in table if ours == "none" for text in quoted(theirs)]
    assert [text for text in absent if has(script, text) or has(script, text.partition("=")[0])] == []
    assert all(quoted(ours) or ours == "none" for _, ours, _ in table)


@pytest.mark.parametrize("site", SITES)
def test_what_every_script_has_is_in_each(site: str, script: str) -> None:
    table = rows(OVERVIEW.read_text("utf-8"), "| ours | why |")
    assert [text for cell, _ in table for text in quoted(cell) if text not in script] == []


@pytest.mark.parametrize("site", SITES)
def test_a_page_names_its_source_and_is_found_from_the_sites_page(site: str) -> None:
    source = page(site).partition("```")[0]
    assert re.search(r"at [0-9a-f]{7}\s\(\d{4}-\d\d-\d\d\)", source)
    assert len(page(site).splitlines()) <= 80
    assert f"evidence/published/{site}.md" in (DOCS / "reference" / "sites" / f"{site}.md").read_text("utf-8")
    assert OVERVIEW.read_text("utf-8").count(f"]({site}.md) |") == 1
