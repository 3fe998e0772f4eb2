"""The ledger: who is kept off, for how long, and that a queue is never emptied."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.base.files import user
from hpc_launch.diagnose.node_health import AT_ONCE, EXPIRY_S, MOST_S, NodeReport, excluded_nodes, standing
from hpc_launch.runs import node_health_store
from hpc_launch.runs.node_health_store import MAX_BYTES, NodeHealthStore, report_files


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


@pytest.mark.parametrize(("kind", "cause"), [("nccl_system_error", ""), ("node_failure", "node_unfit")])
def test_what_another_user_of_the_node_may_have_caused_has_to_be_said_twice(kind: str, cause: str) -> None:
    """Or another node. `node_unfit`: a full /tmp, say, and no fault of the node itself."""
    first, second = (note("n1", run=run, failure_class=kind, cause=cause) for run in "ab")
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
    now = time.time()
    ledger = NodeHealthStore("site/with slash", str(tmp_path))
    assert ledger.notes() == []
    ledger.write([note("n1", now - 9), note("n2", now - 9)])
    NodeHealthStore("site/with slash", str(tmp_path)).write([note("n1", now - 5, run="b")])
    (ledger.folder / "torn.jsonl").write_bytes(b'{"time": 1, "no\n\xff\xfe\n[]\n')
    assert sorted((one.node, one.count) for one in ledger.standing(now)) == [("n1", 2), ("n2", 1)]
    ledger.clear(["n1"])
    assert [one.node for one in ledger.standing(now)] == ["n2"]
    assert NodeHealthStore("another", str(tmp_path)).notes() == []


def as_user(uid: int, groups: list[int], act: Callable[[], object], umask: int = 0o077) -> str:
    """What `act` returns or raises in a process of this user, as text."""
    user()  # imports what the other user may not be allowed to read
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(umask)
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            told = str(act())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return told


ALICE, BOB, TEAM = 64001, 64002, 64003


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a team, and a state folder that each user may write; both outside the folders of this user alone."""
    if os.geteuid() != 0:
        pytest.skip("two users need root")
    with TemporaryDirectory() as place:
        folder = Path(place) / "ledger"
        folder.mkdir()
        os.chown(folder, ALICE, TEAM)
        folder.chmod(0o2770)
        Path(place).chmod(0o755)
        state = Path(place) / "state"
        state.mkdir()
        state.chmod(0o777)
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        yield folder


@pytest.mark.parametrize("setgid", [True, False])
def test_every_member_of_a_team_writes_reads_and_clears(team: Path, *, setgid: bool) -> None:
    team.chmod(0o2770 if setgid else 0o770)
    store = NodeHealthStore("here", str(team))
    assert as_user(ALICE, [TEAM], lambda: store.write([note("n1", time.time())])) == "None"
    assert as_user(BOB, [TEAM], lambda: store.write([note("n2", time.time(), run="b")])) == "None"
    assert as_user(ALICE, [TEAM], lambda: sorted(one.node for one in store.standing())) == "['n1', 'n2']"
    assert as_user(BOB, [TEAM], lambda: sorted(one.node for one in store.standing())) == "['n1', 'n2']"
    assert as_user(BOB, [TEAM], store.problems) == "[]"
    assert as_user(BOB, [TEAM], lambda: store.clear(["n1"])) == "None"
    assert as_user(ALICE, [TEAM], lambda: sorted(one.node for one in store.standing())) == "['n2']"
    assert "PermissionError" in as_user(BOB + 5, [], lambda: store.folder.stat()), "the team's alone"


def test_a_folder_that_its_first_writer_closed_is_named_and_loses_no_report(team: Path) -> None:
    store = NodeHealthStore("here", str(team))
    store.folder.mkdir(mode=0o755)
    os.chown(store.folder, ALICE, ALICE)

    told = as_user(BOB, [TEAM], lambda: store.write([note("n2", time.time())]))

    assert f"cannot write {store.folder}: Permission denied" in told
    assert f"chmod g+rwxs {store.folder}" in told
    assert as_user(BOB, [TEAM], lambda: sorted(one.node for one in store.standing())) == "['n2']", (
        "their own jobs avoid it"
    )
    assert "do not reach the team" in as_user(BOB, [TEAM], store.problems)
    assert "PermissionError" in as_user(BOB, [TEAM], lambda: store.clear(["n2"]))
    assert as_user(ALICE, [TEAM], lambda: store.write([note("n1", time.time())])) == "None", "its owner opens it"
    assert as_user(BOB, [TEAM], lambda: store.write([note("n3", time.time())])) == "None"


def test_reports_that_cannot_be_read_are_counted(team: Path) -> None:
    store = NodeHealthStore("here", str(team))
    as_user(ALICE, [TEAM], lambda: store.write([note("n1", time.time())]))
    next(store.folder.iterdir()).chmod(0o600)
    assert as_user(BOB, [TEAM], store.standing) == "[]"
    assert f"cannot read 1 report on bad nodes by {ALICE}" in as_user(BOB, [TEAM], store.problems)


def test_a_folder_that_everybody_may_write_is_no_team(team: Path) -> None:
    team.chmod(0o1777)
    store = NodeHealthStore("here", str(team))
    as_user(ALICE, [TEAM], lambda: store.write([note("n1", time.time())]), umask=0o022)
    assert store.folder.stat().st_mode & 0o022 == 0


def test_what_a_teammate_puts_into_the_ledger_blocks_nobody(tmp_path: Path) -> None:
    """Pipes, endless and huge files, host lists, options and times that never come."""
    now = time.time()
    ledger = NodeHealthStore("here", str(tmp_path))
    ledger.write([note("good", now, by="somebody else")])
    os.mkfifo(ledger.folder / "pipe.jsonl")
    (ledger.folder / "endless.jsonl").symlink_to("/dev/zero")
    (ledger.folder / "link.jsonl").symlink_to(next(ledger.folder.glob("*-*.jsonl")))
    (ledger.folder / "folder.jsonl").mkdir()
    hostile = [
        {"node": "n[1-20]", "time": now},
        {"node": "n1,n2", "time": now},
        {"node": "--wrap=id", "time": now},
        {"node": "n1\nn2", "time": now},
        {"node": "n" * 300, "time": now},
        {"node": "", "time": now},
        {"node": "future", "time": now + 9e8},
        {"node": "never", "time": 1e300},
        {"node": "past", "time": -1e300},
        {"node": "infinite", "time": float("inf")},
    ]
    lines = [json.dumps({**each, "failure_class": "gpu_hardware"}) for each in hostile]
    (ledger.folder / "hostile.jsonl").write_text("\n".join(lines))
    (ledger.folder / "large.jsonl").write_text(json.dumps({"node": "large", "time": now}).ljust(MAX_BYTES + 1) + "\n")
    (one,) = ledger.standing(now)
    assert one.node == "good"
    assert one.notes[0].by == pwd.getpwuid(os.getuid()).pw_name, "the author is the owner of the file"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_teammate_who_writes_a_lot_costs_the_others_neither_time_nor_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = NodeHealthStore("here", str(tmp_path))
    ledger.write([note("good", time.time())])
    line = json.dumps({"node": "n1", "time": time.time()}) + "\n"
    for number in range(2100):
        path = ledger.folder / f"{number}.jsonl"
        path.write_text(line * (MAX_BYTES // len(line)) if number < 20 else line)
        os.chown(path, 65534, 65534)
    files = report_files(ledger.folder)
    assert len(files) <= 501
    assert sum(path.stat().st_size for path in files) < 1 << 20
    assert "good" in {report.node for report in ledger.notes()}
    monkeypatch.setattr(node_health_store, "MAX_ENTRIES", 2101)
    for number in range(2101):
        (ledger.folder / f"{number}.txt").touch()
    assert "good" in {report.node for report in ledger.notes()}
    assert ledger.problems() == []
    monkeypatch.setattr(node_health_store, "MAX_ENTRIES", 2000)
    assert "more than 2000 files" in ledger.problems()[0]
