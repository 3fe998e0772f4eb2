"""The page of `report` in a real browser: it loads nothing, fits the window, and its charts can be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_launch.performance.run_times import RunTimes
from hpc_launch.performance.time_account import CATEGORIES, Interval, TimeAccount
from hpc_launch.report.run_page import RunReport, run_page
from tests.view.browser import PROGRAM, Browser, browser
from tests.view.samples import NOW, attempt, status
from tests.view.test_report import MARKUP, hostile_run, report_of

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (Debian's package chromium)"),
]

HOUR = 3600.0
FAULTS = """(() => {
  const found = [], root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`the page is ${root.scrollWidth} wide`);
  for (const svg of document.querySelectorAll("svg")) {
    const name = svg.getAttribute("aria-label"), box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map(one => [one.textContent, one.getBoundingClientRect()]);
    for (const [text, at] of texts) {
      if (at.height < 11) found.push(`${name}: ${text} is ${at.height} high`);
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.bottom > box.bottom + 1 || at.top < box.top - 1)
        found.push(`${name}: ${text} is cut off`);
      for (const [other, near] of texts)
        if (near !== at && at.left < near.right && near.left < at.right
            && at.top + 3 < near.bottom && near.top + 3 < at.bottom)
          found.push(`${name}: ${text} is over ${other}`);
    }
  }
  for (const cell of document.querySelectorAll("th, .n"))
    if (cell.getBoundingClientRect().height > 0 && cell.scrollHeight > 40) found.push(`${cell.textContent} is broken`);
  for (const part of document.querySelectorAll("rect")) {
    const key = document.querySelector(`.key.${part.getAttribute("class")}`);
    if (!key) found.push(`${part.getAttribute("class")} is in no legend`);
    else if (getComputedStyle(key).backgroundColor !== getComputedStyle(part).fill) found.push("wrong colour");
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def many_attempts(folder: Path) -> RunReport:
    """A run of twelve attempts on many nodes over nine days, each with evidence."""
    report = report_of(folder)
    parts, attempts, begin = [], [], 1_700_000_000.0
    nodes = tuple(f"jwb{number:04d}.juwels.example.org" for number in range(1, 400, 3))
    for number in range(1, 13):
        one = report.status.folder / "attempts" / f"{number:03d}"
        one.mkdir(parents=True, exist_ok=True)
        quotes = [{"file": "logs/node-0.log", "line": 81234, "text": "[rank3]: torch.OutOfMemoryError " + "x" * 300}]
        verdict = {"action": "RETRY_ELSEWHERE", "reason": "a long reason " * 20, "evidence": quotes, "exclude": nodes}
        (one / "verdict.json").write_text(json.dumps({**verdict, "failure_class": "cuda_assert_or_illegal_access"}))
        times = {"submitted": begin, "started": begin + HOUR, "ended": begin + 17 * HOUR}
        attempts.append(attempt(one, number=number, job_id=f"1234567{number}", state="NODE_FAIL", nodes=nodes, **times))
        for hours, category in zip((1, 0.3, 12, 2, 0.2, 0.7, 0.2, 1, 0.6), CATEGORIES, strict=True):
            parts.append(Interval(begin, begin + hours * HOUR, category, number))
            begin += hours * HOUR
    (report.status.folder / "attempts" / "012" / "script.sh").write_text(
        "export A=" + "b" * 500 + "  # job.yaml:3\n" * 9
    )
    words = {"run": "pretrain-" + "a-long-name-" * 8, "state": "FAILED", "reason": "word " * 80}
    shown = status(**words, folder=report.status.folder, attempts=tuple(attempts))
    spent = replace(report.times, account=TimeAccount(tuple(parts)))
    return RunReport(shown, spent, NOW, notes=("Starts by phase: " + "imports 3 m, " * 30,))


def hostile(folder: Path) -> RunReport:
    """A run whose texts are markup."""
    run = hostile_run(folder, MARKUP)
    one = attempt(run.attempt(1).path, job_id=MARKUP, nodes=(MARKUP,), failure_class=MARKUP, verdict=MARKUP)
    account = TimeAccount((Interval(NOW - 60, NOW - 50, "queued", 1), Interval(NOW - 50, NOW, "starting", 1, MARKUP)))
    shown = status(run=MARKUP, name=MARKUP, site=MARKUP, reason=MARKUP, folder=run.path, attempts=(one,))
    return RunReport(shown, RunTimes(account, (), {}), NOW, notes=(MARKUP,))


@pytest.mark.parametrize("width", [1200, 700, 360])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("make", [report_of, many_attempts, hostile])
def test_the_page_in_a_browser(
    tmp_path: Path, tab: Browser, make: Callable[[Path], RunReport], dark: bool, width: int
) -> None:
    page = tmp_path / "run.html"
    page.write_text(run_page(make(tmp_path)).replace("<details>", "<details open>"), encoding="utf-8")
    tab.open(page, width=width, dark=dark)
    assert tab.problems == []
    assert tab.requests == [page.as_uri()]
    assert tab.evaluate(FAULTS) == []
    back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") is not dark
