"""The ledger: who is kept off, for how long, and that a queue is never emptied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.recover.node_health import AT_ONCE, EXPIRY_S, MOST_S, NodeReport, excluded_nodes, standing
from hpc_launch.run.node_health_store import NodeHealthStore


def note(node: str, time: float = 0.0, run: str = "a", **more: Any) -> NodeReport:
    return NodeReport(**{"time": time, "node": node, "run": run, "attempt": 1, "failure_class": "gpu_hardware", **more})


def test_a_note_expires_and_further_ones_hold_longer() -> None:
    (one,) = standing([note("n1")], EXPIRY_S - 1)
    assert (one.node, one.count, one.avoided) == ("n1", 1, True)
    assert standing([note("n1")], EXPIRY_S + 1) == []
    (twice,) = standing([note("n1"), note("n1", 10, run="b")], 10)
    assert (twice.count, twice.expires) == (2, 10 + 2 * EXPIRY_S)
    (often,) = standing([note("n1", run=str(number)) for number in range(99)], 0)
    assert often.expires == MOST_S


def test_the_same_attempt_counts_once() -> None:
    (one,) = standing([note("n1"), note("n1", 5)], 6)
    assert one.count == 1


def test_what_may_be_another_nodes_fault_has_to_be_said_twice() -> None:
    first, second = (note("n1", run=run, failure_class="nccl_system_error") for run in "ab")
    assert not standing([first], 1)[0].avoided
    assert standing([first, second], 1)[0].avoided


def test_clearing_counts_from_then_on() -> None:
    notes = [note("n1"), note("n1", 10, cleared=True), note("n2"), note("n1", 20, run="b")]
    assert [(one.node, one.count) for one in standing(notes, 15) if one.node == "n1"] == [("n1", 1)]
    assert standing(notes[:2], 15) == []


nodes = st.lists(
    st.builds(
        note,
        st.sampled_from([f"n{number}" for number in range(30)]),
        st.floats(0, 1000),
        st.sampled_from("abcdef"),
        failure_class=st.sampled_from(["nccl_system_error", *AT_ONCE]),
    ),
    max_size=60,
)


@given(nodes, st.one_of(st.none(), st.integers(1, 200)), st.integers(1, 200), st.lists(st.sampled_from(["n1", "x"])))
def test_a_queue_is_never_emptied(notes: list[NodeReport], size: int | None, needed: int, already: list[str]) -> None:
    names = excluded_nodes(standing(notes, 1000), size, needed, already)
    assert not set(names) & set(already)
    if size is None:
        assert names == ()
    elif names:
        assert size - len(names) - len(set(already)) >= needed
        assert len(names) <= max(size // 10, 1)


def test_notes_of_many_writers_are_read_together_and_junk_is_passed_over(tmp_path: Path) -> None:
    ledger = NodeHealthStore("site/with slash", str(tmp_path))
    assert ledger.notes() == []
    ledger.write([note("n1"), note("n2")])
    NodeHealthStore("site/with slash", str(tmp_path)).write([note("n1", 5, run="b")])
    (ledger.folder / "torn.jsonl").write_bytes(b'{"time": 1, "no\n\xff\xfe\n[]\n')
    assert sorted((one.node, one.count) for one in ledger.standing(6)) == [("n1", 2), ("n2", 1)]
    ledger.clear(["n1"])
    assert [one.node for one in ledger.standing(6)] == ["n2"]
    assert NodeHealthStore("another", str(tmp_path)).notes() == []
