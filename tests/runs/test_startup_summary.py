"""The start of an attempt: by the watchers' events, and as its run folder shows it, with the nodes by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.node_records import WatcherEvent
from hpc_launch.runs.records.plan_record import PlanRecord, ProgressRecord
from hpc_launch.runs.status.startup_summary import (
    LAUNCHER,
    MARKS,
    ORDER,
    NodeStart,
    Startup,
    StartupReader,
    history,
    summary,
)
from hpc_launch.runs.submitting.run_store import create_run
from tests.runs.samples import prepared

BEGAN = 1000.0


def node(name: str, **marks: float) -> NodeStart:
    """A node and the seconds after the begin of the script at which it reached each mark."""
    return NodeStart(name, tuple((BEGAN + seconds, mark) for mark, seconds in marks.items()))


def of(*nodes: NodeStart, **facts: object) -> Startup:
    found = summary(nodes, began=BEGAN, **facts)  # type: ignore[arg-type]
    assert found is not None
    return found


def texts(startup: Startup) -> list[str]:
    return startup.text().split("; ")


READY = {"started": 1.0, "launcher": 2.0, "joined": 9.0}


def test_the_nodes_that_the_others_wait_for_are_named_with_what_they_do() -> None:
    nodes = [node(f"n{number}", **READY) for number in (1, 2, 4, 5, 6, 8)]
    late = [node("n3", started=60), node("n7", started=1)]
    found = of(*nodes, *late, runtime="apptainer")
    assert (found.phase, found.waiting_for) == ("rendezvous", ("n3", "n7"))
    assert texts(found) == ["rendezvous: 6 of 8 nodes", "n3, n7 still starting their container"]
    assert found.groups[1].since == BEGAN + 1
    assert texts(of(*nodes, late[0])) == ["rendezvous: 6 of 7 nodes", "n3 still starting Python"]


def test_a_node_that_cannot_reach_the_store_is_named_and_those_that_wait_in_it_are_not() -> None:
    blocked = node("n3", started=1, launcher=2, rendezvous=8)
    assert texts(of(node("n1", **READY), node("n2", **READY), blocked)) == [
        "rendezvous: 2 of 3 nodes",
        "n3 still connecting to the rendezvous",
    ]


def test_nodes_that_are_equally_far_wait_for_nobody() -> None:
    found = of(node("n1", **READY), node("n2", **READY))
    assert (found.phase, found.waiting_for) == ("rendezvous", ())
    assert of(node("n1", **READY)).head() == "rendezvous"


def test_the_start_ends_with_the_group_where_no_step_will_be_seen() -> None:
    done = [node("n1", started=1, group=20), node("n2", started=1, done=20)]
    assert summary(done, has_steps=False) is None
    assert of(*done).phase == "first_step"
    alone = [node("n1", started=1, python=2)]
    assert summary(alone, has_steps=False, output=True) is None
    assert of(*alone, has_steps=False).phase == "imports"


def events(*marks: dict[str, str]) -> list[WatcherEvent]:
    start = WatcherEvent(event="start", t=BEGAN)
    return [start, *(WatcherEvent(event="phase", t=BEGAN + at, marks=one) for at, one in enumerate(marks, 1))]


def test_a_node_is_as_far_as_its_slowest_process() -> None:
    told = events(
        {"-": "launcher"}, {"-": "met"}, {"-": "met", "0": "python"}, {"-": "met", "0": "torch", "1": "python"}
    )
    assert [mark for _, mark in history(told, 2)] == ["started", "launcher", "met", "python"]
    assert history(events({"0": "group"}), 2)[-1][1] == "started"
    assert history(events({"0": "new release", "1": "torch", "-": "?"}), 1)[-1][1] == "torch"


def test_a_launcher_that_starts_its_ranks_again_is_in_its_rendezvous_again() -> None:
    told = events({"-": "met", "0": "done"}, {"-": "joined", "0": "done"}, {"-": "met", "0": "python"})
    assert [mark for _, mark in history(told, 1)] == ["started", "done", "joined", "python"]


marks = st.sampled_from(sorted(MARKS))
processes = st.sampled_from([LAUNCHER, *map(str, range(4))])
histories = st.lists(st.tuples(st.floats(0, 1e9), marks), max_size=5).map(sorted).map(tuple)


@given(st.lists(histories, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_every_node_is_in_one_group_and_no_node_ahead_is_waited_for(
    times: list[tuple[tuple[float, str], ...]],
    has_steps: bool,
    output: bool,
) -> None:
    nodes = [NodeStart(f"n{number}", one) for number, one in enumerate(times)]
    found = summary(nodes, began=0.0, has_steps=has_steps, output=output)
    if found is None:
        return
    assert sorted(name for group in found.groups for name in group.nodes) == sorted(node.name for node in nodes)
    furthest = max(ORDER[node.mark] for node in nodes)
    behind = {node.name for node in nodes if ORDER[node.mark] < furthest or furthest == 0}
    assert set(found.waiting_for) == behind
    assert all(found.doing(group) for group in found.groups)


@given(st.lists(st.dictionaries(processes, st.text(max_size=9) | marks, max_size=5), max_size=5), st.integers(0, 5))
def test_any_events_give_a_history_of_known_marks(told: list[dict[str, str]], count: int) -> None:
    found = history(events(*told), count)
    assert found[0] == (BEGAN, "started")
    assert all(mark in MARKS and mark for _, mark in found)


# --- The files of an attempt ---

PLAN: dict[str, Any] = {
    "nodes": 3,
    "processes_per_node": 1,
    "phases": True,
    "scheduler": "slurm",
    "progress": {"step": r"step (\d+)"},
}


class Attempt:
    """The files of an attempt on n1, n2 and n3."""

    def __init__(self, folder: Path, number: int = 1, **plan: Any) -> None:
        self.folder = AttemptFolder(folder / "run" / "attempts" / f"{number:03d}")
        self.folder.agent.mkdir(parents=True)
        self.folder.logs.mkdir()
        self.folder.plan.write_text(json.dumps({**PLAN, **plan}))
        self.enter("environment", BEGAN)
        self.reader = StartupReader()

    def enter(self, phase: str, at: float) -> None:
        start = {"job_id": "7", "started": BEGAN, "ended": at, "phase": phase, "nodes": "n[1-3]", "exit_code": 0}
        self.folder.start.write_text(json.dumps(start))

    def node(self, number: int, *marks: str, at: float = 1.0) -> None:
        events: list[dict[str, Any]] = [{"event": "start", "t": BEGAN + at}]
        events += [{"event": "phase", "t": BEGAN + at + n, "marks": {"-": mark}} for n, mark in enumerate(marks, 1)]
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (self.folder.agent / f"node-{number}.jsonl").write_text(lines)

    def log(self, number: int, text: str) -> None:
        (self.folder.logs / f"node-{number}.log").write_text(text)

    def text(self) -> str | None:
        found = self.reader.read(Reader().read(self.folder))
        return found.text() if found is not None else None


def test_nodes_have_the_names_of_the_job_and_move_on_between_polls(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert attempt.text() == "start: 0 of 3 nodes; n1, n2, n3 not started"
    found = attempt.reader.read(Reader().read(attempt.folder))
    assert found is not None
    assert (found.phase, found.waiting_for) == ("start", ("n1", "n2", "n3"))
    attempt.node(0, "launcher", "joined")
    attempt.node(2, "launcher")
    found = attempt.reader.read(Reader().read(attempt.folder))
    assert found is not None
    assert (found.waiting_for[:1], found.groups[1].since) == (("n2",), BEGAN)
    assert attempt.text() == "rendezvous: 1 of 3 nodes; n2 not started; n3 still importing"
    attempt.node(1, "launcher", "joined")
    attempt.node(2, "launcher", "joined")
    assert attempt.text() == "rendezvous: 3 of 3 nodes"


def test_while_the_script_prepares_the_nodes_none_is_waited_for(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    for phase, name in (("check", "node check"), ("stage", "staging")):
        attempt.enter(phase, BEGAN + 10)
        found = attempt.reader.read(Reader().read(attempt.folder))
        assert found is not None
        assert (found.text(), found.waiting_for, found.groups[0].since) == (name, (), BEGAN + 10)
    attempt.enter("environment", BEGAN + 50)
    assert attempt.text() == "start: 0 of 3 nodes; n1, n2, n3 not started"


def test_a_node_that_writes_without_a_watcher_is_not_said_to_be_missing(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.node(0, "launcher")
    attempt.log(1, "no python3 on this host\n")
    attempt.log(2, "")
    assert attempt.text() == "imports: 1 of 2 nodes; n3 not started"


def test_a_host_with_fewer_slots_is_as_far_as_the_others(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, scheduler="ssh", processes_per_node=2, slots=[2, 2, 1])
    for number, ranks in enumerate(("01", "23", "4")):
        events = [{"event": "start", "t": BEGAN}, {"event": "phase", "t": BEGAN + 1, "marks": {"-": "met"}}]
        events += [{"event": "phase", "t": BEGAN + 2, "marks": {"-": "met", **dict.fromkeys(ranks, "torch")}}]
        text = "".join(json.dumps(event) + "\n" for event in events)
        (attempt.folder.agent / f"node-{number}.jsonl").write_text(text)
    assert attempt.text() == "imports: 3 of 3 nodes"


def test_the_first_step_ends_the_start(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.node(0, "launcher")
    attempt.log(0, "hello\n")
    assert attempt.text() is not None
    attempt.log(0, "hello\nstep 1\n")
    assert attempt.text() is None


@pytest.mark.parametrize("plan", [{"phases": False}, {"phases": None}])
def test_without_reports_nothing_is_claimed(tmp_path: Path, plan: dict[str, Any]) -> None:
    assert Attempt(tmp_path, **plan).text() is None


@pytest.mark.parametrize("phases", [True, False])
def test_a_run_that_does_not_report_has_no_sitecustomize(runs: Path, phases: bool) -> None:
    plan = PlanRecord(progress=ProgressRecord(), phases=phases)
    run = create_run(prepared(runs, plan=plan))
    assert (run.hooks / "sitecustomize.py").exists() == phases
    assert (run.hooks / "__pycache__").is_file()
