"""The start of an attempt by the watchers' events: its phase, the nodes behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.runs.records.node_records import WatcherEvent
from hpc_launch.runs.status.startup_summary import LAUNCHER, MARKS, ORDER, NodeStart, Startup, history, summary

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


def test_a_node_that_never_reported_has_not_started() -> None:
    found = of(node("n1", **READY), node("n2"), node("n3", **READY))
    assert texts(found) == ["rendezvous: 2 of 3 nodes", "n2 not started"]
    assert (found.waiting_for, found.groups[1].since) == (("n2",), BEGAN)


def test_where_no_node_has_started_all_are_waited_for_unless_something_was_written() -> None:
    found = of(node("n1"), node("n2"))
    assert (found.phase, found.waiting_for) == ("start", ("n1", "n2"))
    assert texts(found) == ["start: 0 of 2 nodes", "n1, n2 not started"]
    assert summary([node("n1"), node("n2")], output=True) is None


def test_a_node_that_cannot_reach_the_store_is_named_and_those_that_wait_in_it_are_not() -> None:
    blocked = node("n3", started=1, launcher=2, rendezvous=8)
    assert texts(of(node("n1", **READY), node("n2", **READY), blocked)) == [
        "rendezvous: 2 of 3 nodes",
        "n3 still connecting to the rendezvous",
    ]


def test_nodes_that_are_equally_far_wait_for_nobody() -> None:
    found = of(node("n1", **READY), node("n2", **READY))
    assert (found.phase, found.waiting_for, texts(found)) == ("rendezvous", (), ["rendezvous: 2 of 2 nodes"])
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
