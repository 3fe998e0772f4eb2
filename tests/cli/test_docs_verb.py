"""`docs` and `explain HL201`: the manual, without a network or a repository."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hpc_launch.base.findings import FindingCode
from tests.view.home import Home

PACKAGE = Path(__file__).parents[2] / "hpc_launch"


@pytest.mark.parametrize("code", ["HL201", "hl201"])
def test_explain_prints_what_a_code_means(shared_home: Home, code: str) -> None:
    text = shared_home.call("explain", code).stdout
    assert text.startswith("### HL201\n\n**")
    assert "hint: " in text
    assert "HL202" not in text


def test_every_code_is_explained(shared_home: Home) -> None:
    from hpc_launch.view.manual import finding_text

    assert not [code for code in FindingCode if f"**{code.heading}.**" not in (finding_text(code.value) or "")]


def test_a_code_that_does_not_exist_is_taken_for_a_file(shared_home: Home) -> None:
    assert "HL001 cannot read the file" in shared_home.call("explain", "HL999", code=3).stderr


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("recovery", "# Recovery"),
        ("job file", "# The job file"),
        ("lumi-g", "# LUMI-G"),
        ("HL201", "### HL201"),
        ("successor", "### The successor"),
        ("cuda_oom", "### `cuda_oom`"),
        ("checkpoint signal_before", "### `checkpoint`"),
    ],
)
def test_docs_prints_the_page_or_the_section_that_the_words_name(shared_home: Home, words: str, begins: str) -> None:
    text = shared_home.call("docs", *words.split()).stdout
    assert text.startswith(begins)
    assert "<!--" not in text


def test_docs_names_further_sections_and_says_if_there_is_none(shared_home: Home) -> None:
    done = shared_home.call("docs", "preemption", "warning")
    assert "see also `hpc-launch docs " in done.stderr
    assert "no page has" in shared_home.call("docs", "xyzzy", code=2).stderr
    pages = shared_home.call("docs").stdout.split()
    assert {"how-to/recovery", "reference/verbs", "tutorials/first-run"} <= set(pages)


def test_no_message_names_a_file_of_the_repository() -> None:
    """A wheel has no docs/ beside it. Docstrings are for those who have."""
    named = []
    page = re.compile(r"docs/\S+\.md")
    for path in PACKAGE.rglob("*.py"):
        if not page.search(path.read_text("utf-8")):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        lone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and id(one) not in lone]
        named += [(path.name, one.value) for one in texts if page.search(str(one.value))]
    named += [(path.name, "") for path in PACKAGE.rglob("*.yaml") if page.search(path.read_text("utf-8"))]
    assert not named
