"""Build the documentation site into build/site (`make site`). It works from the file system, without a network.

The pages of docs/ become those of the site. What they link to elsewhere in the repository, such as a job file, becomes
a page below repository/. An invalid link or anchor fails the build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PAGES = REPOSITORY / "build" / "pages"
SITE = REPOSITORY / "build" / "site"
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What Zensical loads for the search from file://, where browsers refuse a worker. docs/theme has a copy."""

UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""The head of a page that the search leaves out: proof and files of the repository would hide the pages that answer."""

_FENCE = re.compile(r"^(```+).*?^\1$\n?", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)")
_LANGUAGES = {".j2": "jinja", ".md": "markdown", ".sbatch": "bash", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml"}


def main() -> None:
    """Write the pages, and build the site from them."""
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    write_pages()
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=REPOSITORY, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    for page in SITE.rglob("*.html"):
        text = page.read_text("utf-8")
        if SHIM in text:
            copy = os.path.relpath(SITE / "javascripts" / "iframe-worker.js", page.parent)
            page.write_text(text.replace(SHIM, copy), "utf-8")
    shorten_search()
    print(SITE / "index.html")


def shorten_search() -> None:
    """Let the search find a shipped profile as one page: 80 pages with equal headings would hide all others."""
    index = json.loads((SITE / "search.json").read_text("utf-8"))
    kept: dict[str, dict[str, Any]] = {}
    for item in index["items"]:
        page, _, section = item["location"].partition("#")
        if section and page.startswith("reference/sites/") and page in kept:
            kept[page]["text"] += f" {item['title']} {item['text']}"
        else:
            kept[item["location"]] = item
    text = json.dumps({**index, "items": [*kept.values()]}, separators=(",", ":"))
    (SITE / "search.json").write_text(text, "utf-8")
    (SITE / "search.js").write_text(f"var __index = {text}", "utf-8")


def write_pages() -> None:
    """Write the sources of the site to build/pages: docs/, the benchmarks, and everything that a page links to."""
    waiting = [*_files("docs/**/*.md"), *_files("docs/images/*"), *_files("benchmarks/*.md")]
    seen: set[str] = set()
    while waiting:
        source = waiting.pop()
        if source not in seen:
            seen.add(source)
            waiting += _write(source)


def _files(pattern: str) -> Iterator[str]:
    return (str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob(pattern))


def place(source: str) -> str:
    """Where a file or folder of the repository is on the site."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if (REPOSITORY / source).is_dir():
        return f"repository/{source}/README.md"
    return f"repository/{source}" if source.endswith(".md") else f"repository/{source}.md"


def _write(source: str) -> list[str]:
    """Write one page. Returns what it links to."""
    path, target = REPOSITORY / source, PAGES / place(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        own = sorted(child for child in path.iterdir() if child.is_file())
        if path / "README.md" in own:
            return [f"{source}/README.md"]
        text = "\n".join([f"# {source}", "", *(f"- [{child.name}]({child.name})" for child in own), ""])
    elif source.endswith(".md"):
        text = path.read_text("utf-8")
    elif source.startswith("docs/"):
        shutil.copyfile(path, target)
        return []
    else:
        target.write_text(_code(source, path.read_text("utf-8")), "utf-8")
        return []
    text, linked = _moved(text, source if path.is_file() else f"{source}/README.md")
    found = source.startswith("docs/") and not source.startswith("docs/evidence/")
    target.write_text(text if found else UNSEARCHED + text, "utf-8")
    return linked


def _code(source: str, text: str) -> str:
    language = _LANGUAGES.get(Path(source).suffix, "text")
    return f"{UNSEARCHED}# {source}\n\n````{language}\n{text.rstrip()}\n````\n"


def _moved(text: str, source: str) -> tuple[str, list[str]]:
    """The text with its links as they are on the site, and the files of the repository that they name."""
    here, linked = os.path.dirname(place(source)), []

    def replaced(match: re.Match[str]) -> str:
        named = os.path.normpath(os.path.join(os.path.dirname(source), match[2]))
        if not (REPOSITORY / named).exists():
            return match[0]
        linked.append(named)
        return match[1] + os.path.relpath(place(named), here)

    parts, last = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(replaced, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, _LINK.sub(replaced, text[last:])]), linked


if __name__ == "__main__":
    main()
