"""Links in what the pages are generated from: a text names a page from docs/, such as `[ssh](how-to/ssh.md)`."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parent
_LINK = re.compile(r"\]\(((?:tutorials|how-to|reference|explanation|evidence)/[^)\s#]+)")
_WITH_TEXT = re.compile(r"\[([^]]+)\]\((?:[a-z-]+/)+[a-z-]+\.md(?:#[^)]*)?\)")


def relative(text: str, page: Path) -> str:
    """The text of a page with its links relative to the page's own folder."""
    return _LINK.sub(lambda match: f"]({os.path.relpath(DOCS / match[1], page.parent)}", text)


def without_links(text: str) -> str:
    """The text with the words of its links only, for an editor that shows a schema."""
    return _WITH_TEXT.sub(r"\1", text)
