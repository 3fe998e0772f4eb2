"""The manual: the pages that ship with hpc-launch, a section for each heading, found by a few words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_launch.base.installed import shipped

KINDS = ("tutorials", "how-to", "explanation", "reference")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A heading and what follows it, up to the next one, as Markdown."""

    page: str
    """Such as `how-to/recovery`."""
    page_title: str
    heading: str
    text: str


def pages() -> dict[str, Path]:
    """The pages by name: tutorials first, the reference last."""
    folder = shipped("docs")
    found = (path for kind in KINDS for path in sorted((folder / kind).rglob("*.md")))
    return {str(path.relative_to(folder).with_suffix("")): path for path in found}


def page_text(path: Path) -> str:
    """A page without its comments, which are for those who edit it."""
    return _COMMENT.sub("", path.read_text("utf-8"))


def find_page(words: Sequence[str]) -> Path | None:
    """The page whose name these words are, such as `recovery` or `job file`."""
    name = "-".join(words).lower()
    return next((path for key, path in pages().items() if name in (key, key.rpartition("/")[2])), None)


def finding_text(code: str) -> str | None:
    """What a code such as HL201 means and what to do about it, or None for one that does not exist."""
    heading = code.upper()
    return next((part.text for part in _sections("", shipped("docs") / "reference" / "findings.md")
                 if part.heading == heading and re.fullmatch(r"HL\d{3}", heading)), None)  # fmt: skip


def search(words: Sequence[str]) -> list[Section]:
    """The sections that have every word, best first: a word counts most in a heading, then in the title of the page."""
    wanted = [word.lower() for word in words]
    ranked = []
    for name, path in pages().items():
        for part in _sections(name, path):
            heading, title, text = part.heading.lower(), f"{name} {part.page_title}".lower(), part.text.lower()
            if all(word in text or word in title for word in wanted):
                points = sum(8 * (word in heading) + 4 * (word in title) + min(text.count(word), 3) for word in wanted)
                ranked.append((points, part))
    return [part for _, part in sorted(ranked, key=lambda pair: -pair[0])]


def _sections(name: str, path: Path) -> Iterator[Section]:
    """A `#` in a code block is a comment there, not a heading."""
    text = page_text(path)
    blocks = [match.span() for match in _CODE_BLOCK.finditer(text)]
    starts = [one for one in _HEADING.finditer(text) if not any(a <= one.start() < b for a, b in blocks)]
    ends = [*(one.start() for one in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=True):
        yield Section(name, starts[0][1], start[1].replace("`", ""), text[start.start() : end].strip())
