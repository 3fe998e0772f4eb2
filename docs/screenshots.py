"""Take screenshots of the report for docs/images/ (`make docs`), with Chromium. What the GPUs did is made up.

Those of a narrow window, and of the site where `make site` has built it, are in build/screenshots/, to look at.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from docs.build_site import REPOSITORY, SITE
from hpc_launch.performance.run_times import run_times
from hpc_launch.report.run_page import RunReport, compare_page, run_page
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.view.run_facts import run_facts
from tests.view.sampled_run import BEGIN, sampled_run

IMAGES = REPOSITORY / "docs" / "images"
OTHERS = REPOSITORY / "build" / "screenshots"
DIGEST = IMAGES / "screenshots.sha256"
REPORT = REPOSITORY / "hpc_launch" / "report"
WIDE, NARROW = 1280, 360
HEIGHTS = {"report": 636, "heat-map": 370, "comparison": 640}
"""What the screenshots show of their pages, in pixels."""


def pages() -> dict[str, str]:
    """The HTML pages of which screenshots are taken, by name."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        report = run_page(_report(home, "gpt-small-261121-101335-c3f0", nodes=8, rate="0.001"))
        two = [_report(home, f"lr-{rate}", nodes=nodes, rate=rate) for rate, nodes in (("0.001", 2), ("0.003", 1))]
        found = {"report": report, "heat-map": _section(report, "GPU use by node")}
        return {
            name: text.replace(folder, "/home/alice")
            for name, text in {**found, "comparison": compare_page((two[0], two[1]))}.items()
        }


def digest() -> str:
    """A digest of what the report's pages look like: their templates and style."""
    files = sorted([*REPORT.glob("*.j2"), *REPORT.glob("*.css")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() + "\n"


def _report(home: Path, name: str, *, nodes: int, rate: str) -> RunReport:
    steps, now = 3000, BEGIN + 6000.0
    found = sampled_run(home, nodes=nodes, gpus=4, steps=steps, name=name)
    found = replace(found, site="mycluster", progress=Progress(steps, steps, 2.5))
    folder = RunFolder(found.folder)
    for file in (folder.resolved_yaml, *(attempt.plan for attempt in folder.attempts())):
        file.write_text(file.read_text("utf-8").replace("lr: 0.001", f"lr: {rate}").replace("lr=0.001", f"lr={rate}"))
    times = run_times(found, now)
    return RunReport(found, times, now, facts=run_facts(found, times, Index(home / "state", {}), now))


def _section(page: str, heading: str) -> str:
    """The page with nothing but the section below a heading."""
    start = page.index(f"<h2>{heading}")
    return page[: page.index("<main>") + 6] + page[start : page.index("<h2>", start + 1)] + "</main></body></html>"


def main() -> None:
    """Take the screenshots; those in docs/images/ only if the report has changed since the last time."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no screenshots: they need a browser (apt-get install chromium)")
        return
    stale = not DIGEST.is_file() or DIGEST.read_text("utf-8") != digest()
    OTHERS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in pages().items():
            page = Path(folder) / f"{name}.html"
            page.write_text(text, "utf-8")
            if stale:
                _shoot(browser, page, IMAGES / f"{name}.png", WIDE, HEIGHTS[name])
            _shoot(browser, page, OTHERS / f"{name}-{NARROW}.png", NARROW, 800)
    if (SITE / "index.html").is_file():
        for width in (WIDE, NARROW):
            _shoot(browser, SITE / "index.html", OTHERS / f"site-{width}.png", width, 900)
    DIGEST.write_text(digest(), "utf-8")


def _shoot(browser: str, page: Path, image: Path, width: int, height: int) -> None:
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}")
    subprocess.run([browser, *options, f"--screenshot={image}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
