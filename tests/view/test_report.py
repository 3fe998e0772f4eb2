"""The page of `report`: what it shows, that it loads nothing, and that no text of a run becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpc_launch.performance.run_times import RunTimes, run_times
from hpc_launch.performance.time_account import CATEGORIES, Interval, TimeAccount
from hpc_launch.plan.recorded_parts import CodePlan
from hpc_launch.report.charts import coarse, curves, ticks
from hpc_launch.report.run_page import RunReport, compare_page, run_page
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.node_records import PLACES, spread_samples
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.code_snapshot import take_snapshot
from hpc_launch.view.run_facts import code_changes, run_facts, run_links
from tests.view.sampled_run import BEGIN, sampled_run
from tests.view.samples import HOSTILE, NOW, attempt, status

MARKUP = (
    """</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>"'><svg/onload=alert(1)>&lt;b&gt;{{7*7}}"""
)
VOID = {"meta", "line", "polyline", "circle"}
ELEMENTS = VOID | set(
    "html head title style body main h1 h2 h3 p b a div span table thead tbody tr th td pre details summary svg rect "
    "path text".split()
)
ATTRIBUTES = set(
    "lang charset http-equiv content name class viewbox role aria-label x y x1 x2 y1 y2 cx cy r width height points "
    "text-anchor preserveaspectratio tabindex scope d href".split()
)
ADDRESSES = ("http://", "https://", "file:///")


class Page(HTMLParser):
    """The elements and the text of a page. Every element is closed, and none is foreign."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.metas: dict[str, str] = {}
        self.style = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        found = dict(attrs)
        assert (found.get("href") or ADDRESSES[0]).startswith(ADDRESSES)
        if tag == "meta" and found.get("http-equiv"):
            self.metas[str(found["http-equiv"])] = str(found["content"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def hostile_run(folder: Path, text: str) -> RunFolder:
    """A run all of whose texts are `text`."""
    run = RunFolder(folder / "run")
    one = run.attempt(1)
    (one.path / "logs").mkdir(parents=True)
    verdict = {
        "action": text, "reason": text, "failure_class": text, "cause": text, "exclude": [text], "sets": [text],
        "evidence": [{"file": text, "line": 3, "text": text}],
        "diagnosis": {"failure_class": text, "cause": text, "confidence": "high", "first_failure": {"node": text}},
    }  # fmt: skip
    one.verdict.write_text(json.dumps(verdict))
    one.script.write_text(f"#!/bin/bash\n{text} # {text}\n", newline="")
    run.resolved_yaml.write_text(f"name: {text}  # {text}\n", newline="")
    return run


@pytest.mark.parametrize("text", [MARKUP, HOSTILE, "\u202e\u2028\ud800".encode("utf-8", "replace").decode()])
def test_no_text_of_a_run_is_markup_or_steers(tmp_path: Path, text: str) -> None:
    run = hostile_run(tmp_path, text)
    one = attempt(run.attempt(1).path, job_id=text, nodes=(text,), failure_class=text, verdict=text)
    shown = status(run=text, name=text, site=text, reason=text, folder=run.path, attempts=(one,))
    account = TimeAccount((Interval(NOW - 60, NOW - 50, "queued", 1), Interval(NOW - 50, NOW, "starting", 1, text)))
    page = run_page(RunReport(shown, RunTimes(account, (), {}), NOW, notes=(text,)))
    read = Page(page)
    assert "alert(1)" in read.text or text != MARKUP
    assert not [one for one in page if not one.isprintable() and one != "\n"]
    assert read.metas["Content-Security-Policy"].startswith("default-src 'none'; ")


def test_the_share_of_training_is_the_same_in_the_head_and_in_the_table(tmp_path: Path) -> None:
    shown = status(run="r", folder=tmp_path, attempts=())
    account = TimeAccount(
        (Interval(0, 100, "queued", 1), Interval(100, 130, "starting", 1), Interval(130, 230, "training", 1))
    )
    texts = Page(run_page(RunReport(shown, RunTimes(account, (), {}), NOW))).texts
    assert texts.count("76.9%") == 2, texts


def test_the_policy_allows_the_style_and_nothing_else(tmp_path: Path) -> None:
    read = Page(run_page(report_of(tmp_path)))
    digest = base64.b64encode(hashlib.sha256(read.style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in read.metas["Content-Security-Policy"]
    assert not re.search(r"url\(|@import|https?:", read.style)
    for category in CATEGORIES:
        assert len(re.findall(rf"--{category}:", read.style)) == 2, "a colour for light and one for dark"
        assert f".{category} {{" in read.style


def report_of(folder: Path) -> RunReport:
    """The report of a run of two attempts that were interrupted and went on."""
    run = RunFolder(folder / "run")
    begin = 1_700_000_000
    for number in (1, 2):
        one, at = run.attempt(number), begin + 200 * (number - 1)
        one.logs.mkdir(parents=True)
        one.agent.mkdir()
        one.plan.write_text(json.dumps({"progress": {"step": r"step (\d+)/(\d+)", "loss": r"loss (\S+)"}}))
        one.intent.write_text(json.dumps({"time": at}))
        job = {"job_id": str(number), "restart": 0, "started": at + 5}
        one.claim.write_text(str(number))
        one.start.write_text(json.dumps({**job, "phase": "training", "ended": at + 6}))
        one.end.write_text(json.dumps({**job, "exit_code": 2 - number, "ended": at + 150}))
        lines = [f"step {50 * number + step:03d}/200 loss {4 / (step + 50 * number):.2f}\n" for step in range(100)]
        (one.logs / "node-0.log").write_text("".join(lines))
        notes = [
            {"t": at + 20 + step, "event": "output", "size": len(lines[0]) * (step + 1), "written": at + 20 + step}
            for step in range(100)
        ]
        (one.agent / "node-0.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    run.info.write_text(json.dumps({"run": "run", "name": "run", "created": begin}))
    attempts = tuple(
        attempt(run.attempt(n).path, number=n, job_id=str(n), state="FAILED", ended=begin + 200 * n - 50)
        for n in (1, 2)
    )
    found = status(run="run", folder=run.path, state="COMPLETED", attempts=attempts)
    return RunReport(found, run_times(found, NOW), NOW, notes=("A note.",))


def test_a_run_of_two_attempts(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    page = run_page(report)
    read = Page(page)
    for words in ("Where the time went", "Loss by step", "Steps per second over time", "Attempts", "A note."):
        assert words in read.text
    for category in ("queued", "starting", "training", "repeated", "restarting", "ending", "detecting"):
        assert f'class="{category}"' in page
        assert category in read.text
    assert page.count("<polyline") == 4, "loss and throughput of both attempts"
    assert "attempt 2" in read.text
    assert len(page) < 100_000


def test_a_run_without_anything(tmp_path: Path) -> None:
    empty = status(folder=tmp_path / "none", attempts=(), state="SUBMITTING")
    read = Page(run_page(RunReport(empty, run_times(empty, NOW), NOW)))
    assert "SUBMITTING" in read.text


def test_what_is_too_short_to_see_is_not_drawn() -> None:
    parts = [Interval(at, at + 1, "checkpointing" if at % 2 else "training", 1) for at in range(10_000)]
    assert len(coarse(parts, 10_000 / 2000)) < 4000
    assert coarse(parts, 0.5) == parts
    drawn = coarse(parts, 5)
    assert (drawn[0].begin, drawn[-1].end) == (0, 10_000)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (2, 11, [2, 4, 6, 8, 10]), (5, 5, [5]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("one", "other"), [(1e308, -1e308), (0.0, 5e-324), (1e299, -1e299)])
def test_extreme_values_are_drawn_or_left_out(one: float, other: float) -> None:
    curves([[(1.0, one), (2.0, other), (3.0, 1.0)]], label=str, times=False)


def test_curves_of_one_point_or_none_are_not_drawn() -> None:
    assert curves([], label=str, times=True) is None
    assert curves([[(1.0, 2.0)]], label=str, times=False) is None
    flat = curves([[(1.0, 2.0)], [(2.0, 2.0), (3.0, 2.0)]], label=str, times=False)
    assert flat is not None
    assert (len(flat.dots), len(flat.curves)) == (1, 1)


def test_the_page_of_many_ranks_shows_each_of_them_and_stays_small(tmp_path: Path) -> None:
    """10,000 steps on 64 ranks; what the GPUs do is made up (`sampled_run`)."""
    found = sampled_run(tmp_path)
    run = RunFolder(found.folder)
    run.site_yaml.write_text(
        "name: priced\nscheduler: slurm\nnode_classes: {n: {cpus: 2, gpus: 8}}\nqueues: {q: {node_class: n}}\n"
        "billing: {gpu_hour: 2.0, currency: EUR}\n"
    )
    with run.attempts()[-1].first_log.open("r+") as log:
        log.write("wandb: View run at https://wandb.ai/me/x\n")
    times = run_times(found, BEGIN + 20_000)
    facts = run_facts(found, times, Index(tmp_path / "state", {}), BEGIN + 20_000)
    page = run_page(RunReport(found, times, BEGIN + 20_000, facts=facts, links=run_links(run)))
    read = Page(page)
    assert len(page.encode()) < 1_000_000
    for words in (
        "GPU use by node", "► marks a straggler, which the other nodes wait for: n7.", "GPU use by rank",
        "GPU memory by rank", "rank 62, n7", "Loss by step", "Learning rate by step", "Start-up phases",
        "Short marks at the bottom: a checkpoint was saved.", "time since the run was created", "steps per second",
        "hpc-launch submit /home/me/job.yaml --set=args.lr=0.001", "95.82", "191.6 EUR at 2 EUR per GPU hour",
    ):  # fmt: skip
        assert words in read.text, words
    assert len(re.findall('class="save"', page)) == 2 * 8, "four checkpoints of each attempt, in both charts"
    assert 'href="https://wandb.ai/me/x"' in page
    table = page[page.index("Use and memory in numbers") :]
    assert len(re.findall("<tr><th scope=.row.>rank ", table)) == 64
    scrolled = re.findall('<div class="wide" [^>]*><svg', page)
    assert all('tabindex="0"' in region and "aria-label" in region for region in scrolled)


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    reports = []
    for name, nodes, rate in (("one", 2, "0.001"), ("two", 1, "0.003")):
        found = sampled_run(tmp_path, nodes=nodes, gpus=2, steps=400, name=name)
        values = RunFolder(found.folder).resolved_yaml
        values.write_text(
            values.read_text().replace("0.001", rate) + (f"    note: {json.dumps(MARKUP)}\n" if nodes == 1 else "")
        )
        times, now = run_times(found, BEGIN + 2000), BEGIN + 2000.0
        reports.append(RunReport(found, times, now, facts=run_facts(found, times, Index(tmp_path / "s", {}), now)))
    page = compare_page((reports[0], reports[1]))
    read = Page(page)
    settings = page[page.index("Settings that differ") : page.index("Loss by step")]
    rows = [re.sub("<[^>]*>", "|", row) for row in re.findall("<tr>(.*)</tr>", settings)[1:]]
    assert [row.split("|")[1] for row in rows] == ["name", "nodes", "args.lr", "args.note"]
    assert "|args.lr||0.001||0.003|" in rows[2]
    assert "alert(1)" in rows[3]
    assert "not set" in rows[3]
    for words in ("Loss by GPU hours", "GPU hours", "goodput", "speed", "Solid: one. Dashed: two."):
        assert words in read.text, words
    assert page.count('<polyline class="curve first"') == page.count('<polyline class="curve second"') == 2 * 2
    assert len(page) < 100_000


def test_a_long_file_of_samples_is_read_at_some_places(tmp_path: Path) -> None:
    path = tmp_path / "node-0.jsonl"
    with path.open("w") as stream:
        for at in range(60_000):
            stream.write(
                f'{{"t": {at}, "event": "sample", "rss_mib": {{"0": 1}}, "places": {{"0": {{"{"x" * 60}": 1}}}}}}\n'
            )
    times = [sample.t for sample in spread_samples(path)]
    assert len(times) == PLACES
    assert times == sorted(times)
    assert times[-1] - times[0] > 59_000
    assert list(spread_samples(tmp_path / "none")) == []


def test_the_changes_since_the_commit_are_those_of_the_copy(tmp_path: Path) -> None:
    code, run = tmp_path / "code", RunFolder(tmp_path / "run")
    code.mkdir()
    run.path.mkdir()
    (code / "train.py").write_text("lr = 1\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "one")):
        subprocess.run(["git", "-C", str(code), *words], check=True)
    (code / "train.py").write_text("lr = 2\n")
    take_snapshot(run, CodePlan(root=str(code)))
    (code / "train.py").write_text("lr = 3\n")
    assert [line for line in code_changes(run).splitlines() if line[:1] in "+-"][-2:] == ["-lr = 1", "+lr = 2"]
