"""The hand-written pages: short, with an answer first, and in English also where a program puts the words together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.build_site import REPOSITORY
from docs.screenshots import DIGEST, HEIGHTS, IMAGES, digest

DOCS = REPOSITORY / "docs"
KINDS = ("tutorials", "how-to", "explanation")
WRITTEN = [DOCS / "README.md", *(page for kind in KINDS for page in sorted((DOCS / kind).glob("*.md")))]
LONGEST, TOGETHER = 250, 4500
ANSWER = re.compile(r"^(```|\| ?-|!\[|- |1\. )", re.MULTILINE)
"""What answers a question at a glance: a command or a file, a table, a picture, a list."""
WRONG = re.compile(
    r"(?<![\w.,:/=-])(?<!\+ )1 (?:nodes|processes|GPUs|CPUs|hosts|jobs|steps|attempts|tasks|slots|hours|days|minutes)\b"
    r"|valuess|mappingss|stringss|`\w+`s\b"
)
"""One of several; a plural of a plural; the plural of a name."""


def test_the_pages_are_short() -> None:
    lines = {page.name: len(page.read_text("utf-8").splitlines()) for page in WRITTEN}
    assert not {name: count for name, count in lines.items() if count > LONGEST}
    assert sum(lines.values()) <= TOGETHER


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_a_page_answers_its_first_question_within_twenty_lines(page: Path) -> None:
    assert ANSWER.search("\n".join(page.read_text("utf-8").splitlines()[:20]))


def test_the_screenshots_are_of_the_present_report() -> None:
    assert all((IMAGES / f"{name}.png").is_file() for name in HEIGHTS)
    assert DIGEST.read_text("utf-8") == digest(), "run `make docs`; it needs chromium"


def test_generated_words_have_the_right_number() -> None:
    texts = [*DOCS.rglob("*.md"), *(REPOSITORY / "tests" / "golden").rglob("*.sh"), *DOCS.glob("images/*.svg")]
    found = {path.name: WRONG.findall(path.read_text("utf-8")) for path in texts}
    assert not {name: words for name, words in found.items() if words}
