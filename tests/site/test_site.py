"""The documentation site: it builds with strict links, and a browser shows it from the file system."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.build_site import REPOSITORY, SITE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs zensical: pip install -e '.[site]'"),
]
AXE = "4.14.1"
"""The version of axe-core, an npm package."""
NARROW, WIDE = (360, 800), (1280, 900)
PAGES = ["index.html", "how-to/recovery.html", "reference/job-file.html", "reference/findings.html"]
WRITTEN = [page for page in sorted((REPOSITORY / "docs").glob("*/*.md")) if page.stem != "README"]


@pytest.fixture(scope="module")
def site() -> Path:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "docs" / "build_site.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return SITE


def test_the_site_has_every_page_and_asks_no_other_host(site: Path) -> None:
    for page in (REPOSITORY / "docs").rglob("*.md"):
        name = page.relative_to(REPOSITORY / "docs").with_suffix(".html")
        assert (site / name.with_name(name.name.replace("README", "index"))).is_file(), page
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?(https?:[^\" >]+)")
    assert not [page for page in site.rglob("*.html") if loads.search(page.read_text("utf-8"))]


# --- In a browser ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[site]'")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


def _open(browser: Any, size: tuple[int, int], scheme: str = "light") -> tuple[Any, list[str]]:
    """A page, and what goes wrong on it: messages on the console, errors, requests of anything but files."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(request.url)
    )
    return page, wrong


@pytest.mark.prove
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("HL201", "reference/findings.html#hl201"),
        ("resume", "reference/job-file.html#checkpointresume"),
        ("LUMI", "reference/sites/lumi-g.html"),
    ],
)
def test_the_search_works_without_a_server(site: Path, browser: Any, words: str, found: str) -> None:
    page, wrong = _open(browser, WIDE)
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type(words, delay=50)
    first = page.locator("a[href*='?h=']").first
    first.wait_for(timeout=60_000)
    assert re.sub(r"\?h=[^#]*", "", first.evaluate("link => link.href")) == f"{site.as_uri()}/{found}"
    assert not wrong


TASKS = {
    "install": "tutorials/first-run.html#install",
    "new cluster": "tutorials/your-cluster.html#learn-a-new-cluster",
    "convert sbatch script": "tutorials/your-sbatch-script.html#convert-it",
    "account": "how-to/ten-keys.html#set-your-account-once",
    "laptop": "how-to/laptop.html",
    "container image": "how-to/containers.html",
    "job pending": "how-to/troubleshooting.html#pending-for-ever",
    "time limit": "how-to/troubleshooting.html#it-stops-after-its-time-limit",
    "out of memory": "how-to/troubleshooting.html#out-of-gpu-memory",
    "hyperparameters": "how-to/sweeps.html",
}
"""What newcomers look for, in the words that they use, and where the answer is."""


@pytest.mark.prove
def test_a_newcomer_opens_at_most_two_pages(site: Path, browser: Any) -> None:
    page, _ = _open(browser, WIDE)
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    links, late = page.locator("a[href*='?h=']"), {}
    for words, answer in TASKS.items():
        page.keyboard.press("Control+a")
        page.keyboard.type(words, delay=20)
        shown = [f"{site.as_uri()}/{answer}" in re.sub(r"\?h=[^#]*", "", link) for link in _settled(page, links)[:2]]
        if not any(shown):
            late[words] = _settled(page, links)[:5]
    assert not late


def _settled(page: Any, links: Any) -> list[str]:
    """The addresses of the results, once they no longer change."""
    now: list[str] = []
    for _ in range(40):
        page.wait_for_timeout(700)
        before, now = now, [str(link) for link in links.evaluate_all("links => links.map(link => link.href)")]
        if now and now == before:
            break
    return now


@pytest.mark.prove
@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_every_page_fits_the_screen_and_shows_its_images(site: Path, browser: Any, size: tuple[int, int]) -> None:
    page, wrong = _open(browser, size)
    # Of the pages of shipped profiles, which are all alike, two; of files shown as code, one.
    files = [site / page.relative_to(REPOSITORY / "docs").with_suffix(".html") for page in WRITTEN]
    files += [site / "reference" / "sites" / name for name in ("index.html", "lumi-g.html", "jean-zay.html")]
    for file in [site / "index.html", *files, site / "repository" / "examples" / "nanogpt" / "job.yaml.html"]:
        page.goto(file.as_uri())
        width, broken = page.evaluate(
            "[document.documentElement.scrollWidth,"
            " [...document.images].filter(one => !one.complete || !one.naturalWidth).map(one => one.src)]"
        )
        assert width <= size[0], file
        assert not broken, file
        assert not wrong, file


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm") and subprocess.run(
        ["npm", "pack", f"axe-core@{AXE}"], cwd=folder, capture_output=True, check=False, timeout=120
    )
    if not npm or npm.returncode:
        pytest.skip(f"needs the npm package axe-core {AXE}, and npm to fetch it")
    with tarfile.open(folder / f"axe-core-{AXE}.tgz") as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


@pytest.mark.prove
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_accessible(site: Path, browser: Any, axe: str, name: str, scheme: str) -> None:
    page, _ = _open(browser, WIDE, scheme)
    page.goto((site / name).as_uri())
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    grave = [one for one in found if one["impact"] in {"serious", "critical"}]
    assert not grave, json.dumps([(one["id"], one["nodes"][0]["html"]) for one in grave], indent=2)


@pytest.mark.prove
def test_a_page_is_dark_where_the_system_is(site: Path, browser: Any) -> None:
    page, _ = _open(browser, WIDE, "dark")
    page.goto((site / "index.html").as_uri())
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
