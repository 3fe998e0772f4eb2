"""The list of runs, and naming one of them: with a good database, a bad one, and none."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from hpc_launch.base.errors import SubmitRefused, UsageError
from hpc_launch.runs import index_database
from hpc_launch.runs.find_run import find_run
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.submit_attempt import submit_new
from tests.runs.fake import FakeScheduler
from tests.runs.samples import prepared


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "state", {})


def again(index: Index) -> Index:
    """The same as the next command sees it."""
    return Index(index.folder, {})


def database(index: Index) -> Path:
    (path,) = index.folder.glob("*.sqlite")
    return path


@pytest.fixture
def three(runs: Path, scheduler: FakeScheduler, index: Index) -> list[RunFolder]:
    return [submit_new(prepared(runs, name=name), scheduler, index=index)[0] for name in ("alpha", "beta", "beta2")]


def names(index: Index) -> set[str]:
    return {entry.name for entry in index.entries()}


def test_runs_are_listed_newest_first(index: Index, three: list[RunFolder]) -> None:
    assert [entry.name for entry in index.entries()] == ["beta2", "beta", "alpha"]


@pytest.mark.parametrize("content", [b"this is no database", b"", b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_broken_database_is_made_again(index: Index, three: list[RunFolder], content: bytes) -> None:
    database(index).write_bytes(content)

    assert names(again(index)) == {"alpha", "beta", "beta2"}
    assert names(again(index)) == {"alpha", "beta", "beta2"}
    assert find_run("1", again(index)).path == three[0].path


def test_another_versions_database_is_made_again(index: Index, three: list[RunFolder]) -> None:
    with sqlite3.connect(database(index)) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()

    assert names(again(index)) == {"alpha", "beta", "beta2"}


def test_a_locked_database_is_passed_over(index: Index, three: list[RunFolder]) -> None:
    connection = sqlite3.connect(database(index))
    connection.execute("BEGIN EXCLUSIVE")
    try:
        assert names(again(index)) == {"alpha", "beta", "beta2"}
        assert find_run("2", again(index)).path == three[1].path
    finally:
        connection.close()


def test_a_state_folder_that_cannot_be_made(tmp_path: Path, runs: Path, scheduler: FakeScheduler) -> None:
    (tmp_path / "state").write_text("a file")
    index = Index(tmp_path / "state", {"HPC_LAUNCH_HOME": str(runs)})

    run, _, _ = submit_new(prepared(runs), scheduler, index=index)

    assert [entry.run for entry in index.entries()] == [run.name]


def test_a_run_that_was_removed_is_gone(index: Index, three: list[RunFolder]) -> None:
    shutil.rmtree(three[1].path)

    assert names(index) == {"alpha", "beta2"}


def test_entries_of_others_in_a_shared_folder_hide_no_run(index: Index, three: list[RunFolder]) -> None:
    """Neither a link that cannot be followed nor a folder that cannot be entered."""
    (three[0].path.parent / "a").symlink_to("x" * 300)
    assert names(again(index)) == {"alpha", "beta", "beta2"}


def test_very_many_folders_of_others_hide_no_known_run(
    index: Index, three: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    index.entries()
    for number in range(100):
        (three[0].path.parent / f"a{number}").mkdir()
    monkeypatch.setattr(index_database, "UNKNOWN_S", 0.0)
    assert names(again(index)) == {"alpha", "beta", "beta2"}


def test_a_run_that_cannot_be_looked_at_for_the_moment_stays_in_the_index(index: Index, three: list[RunFolder]) -> None:
    index.entries()
    names_of = three[0].path.parent
    aside = names_of.with_name("aside")
    names_of.rename(aside)
    names_of.symlink_to("x" * 300)  # as a file server that does not answer: ENAMETOOLONG, not ENOENT
    assert names(again(index)) == {"alpha", "beta", "beta2"}


def test_names_of_a_run(
    index: Index, three: list[RunFolder], scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, _, beta2 = three
    assert find_run(alpha.name, index) == alpha
    assert find_run("al", index) == alpha
    assert find_run("@last", index) == beta2
    assert find_run("3", index) == beta2
    assert find_run(str(alpha.path), index) == alpha
    assert find_run(str(alpha.attempt(1).path), index) == alpha
    monkeypatch.chdir(alpha.path)
    assert find_run(".", index) == alpha


@pytest.mark.parametrize("fault", ["refuse", "full"])
def test_a_refused_submission_is_not_the_last_run(
    index: Index, three: list[RunFolder], scheduler: FakeScheduler, fault: str
) -> None:
    scheduler.fault = fault
    with pytest.raises(SubmitRefused):
        submit_new(prepared(three[0].path.parent, name="refused"), scheduler, index=index)
    assert len(index.entries()) == 4
    assert find_run("@last", index) == three[2]
    assert find_run("refused", index).name.startswith("refused")


def test_an_ambiguous_name_lists_what_it_may_mean(index: Index, three: list[RunFolder]) -> None:
    with pytest.raises(UsageError, match=r"beta2-.*beta-|beta-.*beta2-"):
        find_run("beta", index)


def test_a_wrong_name_lists_what_comes_near(index: Index, three: list[RunFolder]) -> None:
    with pytest.raises(UsageError) as caught:
        find_run("alhpa", index)

    assert three[0].name in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "@last", "x", "/", "a\0b", "~nobody-at-all", "9" * 5000])
def test_nothing_to_be_found(index: Index, text: str) -> None:
    with pytest.raises(UsageError):
        find_run(text, index)
